"""The agent of a node of the fast engine: a real LocalElasticAgent, in a process from the shared forkserver.

Its workers come from the same forkserver, and so are no children of it: each announces itself (``stock.py``). Its
rendezvous is torch's, with timers below a second, and a leave, which that lacks.

All that the fast engine uses of torch's private parts is here and in ``worker/torch_internals.py``. What this module
uses is listed as ``FAST_PARTS`` in ``table.py``: where torch lacks one of them the engine does not run.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from torch.distributed import TCPStore  # type: ignore[attr-defined] # exported at run time only
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.rendezvous import RendezvousInfo
from torch.distributed.elastic.rendezvous import dynamic_rendezvous as private
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

from pytest_distbench.jobs.engines.contract import LOOPBACK, MAX_RESTARTS
from pytest_distbench.jobs.engines.stock import STORE_S, announce
from pytest_distbench.records.elastic import NODE_VARIABLE, SLOT_VARIABLE, ElasticJob
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.record import Number, Record
from pytest_distbench.records.timeline import Rendezvous, append
from pytest_distbench.worker import forked
from pytest_distbench.worker.elastic import life
from pytest_distbench.worker.process import take_output
from pytest_distbench.worker.python_internals import share_forkserver
from pytest_distbench.worker.torch_internals import WokenByRanks

_CLOSE_S = 5.0
_HEARTBEAT_S = 5.0
_LEAVE_S = 2.0


class FastRendezvous(private.DynamicRendezvousHandler):
    """The rendezvous of a node. Its public way takes whole seconds, looks once a second, and forgets no node."""

    tell: Callable[[float], None]
    """Told how many seconds each took."""

    def next_rendezvous(self) -> RendezvousInfo:
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
    # it walks the stack for a log that is off: nearly all a rendezvous costs
    private.get_method_name = lambda depth=2: ""
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


_FEWEST_S = 0.001
_SHUTDOWN_S = 30
"""How long a worker may take to end when it is told to: torchrun's own."""
_FAILED = 1


class AgentSetup(Record, frozen=True, kw_only=True):
    """What an agent needs to know. ``announced`` is where its processes announce themselves."""

    job: ElasticJob
    directory: str
    slot: int
    word: str
    announced: str
    port: int
    run_id: str


class _Agent(WokenByRanks, LocalElasticAgent):
    """torch's agent, woken by its worker's end."""


def run(setup: AgentSetup) -> NoReturn:
    """Be the agent of a node until its worker has finished, or SIGTERM asks it to go."""
    files = LaunchFiles(Path(setup.directory))
    take_output(files.agent_log(setup.slot))
    signal.signal(signal.SIGTERM, _raise_signal)
    share_forkserver()
    os.environ |= {SLOT_VARIABLE: str(setup.slot), NODE_VARIABLE: setup.word}
    rendezvous: FastRendezvous | None = None
    code = 0
    try:
        store = TCPStore(LOOPBACK, setup.port, is_master=False, timeout=timedelta(seconds=STORE_S))
        rendezvous = make_rendezvous(
            store,
            run_id=setup.run_id,
            address=LOOPBACK,
            least=setup.job.least,
            most=setup.job.most,
            timers=setup.job.timers,
            tell=lambda seconds: append(
                files.timeline, Rendezvous(t=time.monotonic(), slot=setup.slot, seconds=seconds)
            ),
        )
        _make_agent(setup, files, rendezvous).run()
        rendezvous.close()
    except SignalException:
        with contextlib.suppress(Exception):  # the others will miss it in time
            if rendezvous is not None:
                rendezvous.leave()
    except BaseException:  # noqa: BLE001 whatever ends an agent is told in its log
        traceback.print_exc()
        code = _FAILED
    os._exit(code)


def _make_agent(setup: AgentSetup, files: LaunchFiles, rendezvous: FastRendezvous) -> _Agent:
    return _Agent(
        spec=WorkerSpec(
            role="default",
            local_world_size=1,
            entrypoint=_enter,
            args=(str(files.plan), setup.slot, setup.word, setup.announced),
            rdzv_handler=rendezvous,
            max_restarts=MAX_RESTARTS,
            monitor_interval=_FEWEST_S,
            local_addr=LOOPBACK,
        ),
        logs_specs=DefaultLogsSpecs(log_dir=str(files.torchrun_logs / str(setup.slot))),
        start_method="forkserver",
        shutdown_s=_SHUTDOWN_S,
        look_s=setup.job.timers["poll_s"],
        on_start=lambda pids: None,
    )


def _raise_signal(number: int, _: object) -> NoReturn:
    raise SignalException(f"agent {os.getpid()} was told to go", signal.Signals(number))


def _enter(plan: str, slot: int, word: str, announced: str) -> NoReturn:
    """What a worker's process runs. A node that is killed is killed with all that announced themselves before.

    So a process that did so too late must see that its agent is gone.
    """
    announce(Path(announced), os.getpid())
    agent = multiprocessing.parent_process()
    if agent is None or not agent.is_alive():
        os._exit(_FAILED)
    forked.begin_anew()
    multiprocessing.set_start_method(None, force=True)  # a forked worker would hand on the forkserver's to DataLoaders
    os.environ |= {SLOT_VARIABLE: str(slot), NODE_VARIABLE: word}
    life.main(plan)
