"""torch's rendezvous with timers below a second, and a leave, which it lacks.

All that the fast engine uses of torch's private parts is here and in ``worker/torch_internals.py``. What this module
uses is listed as ``FAST_PARTS`` in ``engines.py``: where torch lacks one of them the engine does not run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined] # exported at run time only
from torch.distributed.elastic.rendezvous import RendezvousInfo
from torch.distributed.elastic.rendezvous import dynamic_rendezvous as private
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

from pytest_distbench.records.record import Number

_CLOSE_S = 5.0
_HEARTBEAT_S = 5.0
_LEAVE_S = 2.0


class FastRendezvous(private.DynamicRendezvousHandler):
    """The rendezvous of a node. Its public way takes whole seconds, looks once a second, and forgets no node."""

    tell: Callable[[float], None]
    """Told how many seconds each took."""

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet the others."""
        start = time.monotonic()
        info = super().next_rendezvous()
        self.tell(time.monotonic() - start)
        return info

    def num_nodes_waiting(self) -> int:
        """Nodes that wait to be let in; this one is among them where the others count it as lost.

        On a busy machine its signs of life come too late. torch's own trains on alone then, beside the others.
        """
        waiting = super().num_nodes_waiting()
        return waiting if self._this_node in self._state_holder.state.participants else max(1, waiting)

    def shutdown(self) -> bool:
        """Do nothing: the agent of torch 2.7 and older would close the rendezvous of all nodes when its own leaves."""
        return True

    def close(self) -> None:
        """Let no node join any more: the job is at its end."""
        super().shutdown()

    def leave(self) -> None:
        """Take this node off all lists: others need not wait until it counts as lost."""
        self._stop_heartbeats()
        self._op_executor.run(_leave, time.monotonic() + _LEAVE_S)


def make_rendezvous(
    store: TCPStore,
    *,
    run_id: str,
    address: str,
    least: int,
    most: int,
    timers: Mapping[str, Number],
    tell: Callable[[float], None],
) -> FastRendezvous:
    """Make the rendezvous of this process's node; ``tell`` is told how many seconds each one took."""
    poll_s = float(timers["poll_s"])
    private.get_method_name = lambda depth=2: (
        ""
    )  # it walks the stack for a log that is off: nearly all a rendezvous costs
    private._delay = lambda seconds: time.sleep(poll_s)  # type: ignore[attr-defined] # instead of a second, and of up to 0.3 s at the start
    settings = private.RendezvousSettings(
        run_id,
        least,
        most,
        private.RendezvousTimeout(
            join=timedelta(seconds=timers["settle_s"]),
            last_call=timedelta(seconds=timers["last_call_s"]),
            close=timedelta(seconds=_CLOSE_S),
            heartbeat=timedelta(seconds=_HEARTBEAT_S),
        ),
        keep_alive_interval=timedelta(seconds=timers["keep_alive_s"]),
        keep_alive_max_attempt=int(timers["keep_alive_attempts"]),
    )
    backend = C10dRendezvousBackend(store, run_id)
    holder = private._BackendRendezvousStateHolder(backend, settings, cache_duration=poll_s)  # type: ignore[arg-type]
    node = FastRendezvous._node_desc_generator.generate(address)
    made = FastRendezvous(node, settings, backend.name, store, holder)
    made.tell = tell
    return made


def _leave(context: Any, deadline: float) -> private._Action:
    """What is next for a node that leaves; torch's own leaves it on the list of those that wait."""
    state, node = context.state, context.node
    for members, action in (
        (state.participants, private._Action.REMOVE_FROM_PARTICIPANTS),
        (state.wait_list, private._Action.REMOVE_FROM_WAIT_LIST),
        (state.redundancy_list, private._Action.REMOVE_FROM_REDUNDANCY_LIST),
    ):
        if node in members:
            return private._Action.ERROR_TIMEOUT if time.monotonic() > deadline else action
    return private._Action.FINISH
