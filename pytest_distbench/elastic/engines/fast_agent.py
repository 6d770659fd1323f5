"""The agent of a node of the fast engine: torch's elastic agent, in a process that was forked with torch loaded.

Its worker is forked by the same parent. Its rendezvous is torch's, with timers below a second, and with a way to leave,
which torch's lacks.

All that the fast engine uses of torch's private parts is here and in ``worker/torch_internals.py``. ``FAST_PARTS``
lists what this module uses of the rendezvous: without one of these names in torch, the engine does not run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

from torch.distributed import TCPStore  # type: ignore[attr-defined] # exported at run time only
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import RendezvousInfo
from torch.distributed.elastic.rendezvous import dynamic_rendezvous as private
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

from pytest_distbench.elastic.engines import LOOPBACK, MAX_RESTARTS, STORE_S
from pytest_distbench.elastic.records import NODE_VARIABLE, SLOT_VARIABLE, ElasticJob, Job, event
from pytest_distbench.elastic.worker import training
from pytest_distbench.launch.site import processes
from pytest_distbench.launch.starters.parent import Parent
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.wire import append
from pytest_distbench.worker import forked
from pytest_distbench.worker.process import take_output

_CLOSE_S = 5.0
_HEARTBEAT_S = 5.0
_LEAVE_S = 2.0


class FastRendezvous(private.DynamicRendezvousHandler):
    """The rendezvous of a node. torch's public one takes whole seconds, polls once a second, and forgets no node."""

    def __init__(self, *parts: Any, report: Callable[[float], None]) -> None:
        super().__init__(*parts)
        self.report = report

    def next_rendezvous(self) -> RendezvousInfo:
        start = time.monotonic()
        info = super().next_rendezvous()
        self.report(time.monotonic() - start)
        return info

    def num_nodes_waiting(self) -> int:
        """Number of nodes that wait to join, at least 1 if the others count this node as lost: it then restarts.

        Heartbeats come too late on a busy machine. torch's own agent would then train on alone, apart from the others.
        """
        waiting = super().num_nodes_waiting()
        return waiting if self._this_node in self._state_holder.state.participants else max(1, waiting)

    def leave(self) -> None:
        """Take this node off all lists, so that others need not wait until it counts as lost."""
        self._stop_heartbeats()
        self._op_executor.run(_leave, time.monotonic() + _LEAVE_S)


def make_rendezvous(store: TCPStore, run_id: str, job: ElasticJob, report: Callable[[float], None]) -> FastRendezvous:
    """Make the rendezvous of this process's node; ``report`` is called with the seconds that each one took."""
    timers = job.timers
    poll_s = float(timers["poll_s"])
    # it walks the stack for a log that is off: nearly all a rendezvous costs
    private.get_method_name = lambda depth=2: ""
    private._delay = lambda seconds: time.sleep(poll_s)  # type: ignore[attr-defined] # instead of a second, and of up to 0.3 s at the start
    settings = private.RendezvousSettings(
        run_id,
        job.least,
        job.most,
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
    node = FastRendezvous._node_desc_generator.generate(LOOPBACK)
    return FastRendezvous(node, settings, backend.name, store, holder, report=report)


def _leave(context: Any, deadline: float) -> private._Action:
    """Return the next action of a node that leaves; torch's own would leave it on the list of waiting nodes."""
    state, node = context.state, context.node
    for members, action in (
        (state.participants, private._Action.REMOVE_FROM_PARTICIPANTS),
        (state.wait_list, private._Action.REMOVE_FROM_WAIT_LIST),
        (state.redundancy_list, private._Action.REMOVE_FROM_REDUNDANCY_LIST),
    ):
        if node in members:
            return private._Action.ERROR_TIMEOUT if time.monotonic() > deadline else action
    return private._Action.FINISH


_WORKER = "pytest_distbench.elastic.engines.fast_agent:work"
_FEWEST_S = 0.001
_SHUTDOWN_S = 30  # how long a worker may take to end when it is asked to: torchrun's own
_FAILED = 1


class _Agent(SimpleElasticAgent):
    """torch's agent whose worker a parent process forks, and which wakes when the worker ends."""

    def __init__(self, spec: WorkerSpec, parent: Parent, plan: LaunchPlan, run_id: str) -> None:
        super().__init__(spec)
        self._parent = parent
        self._plan = str(plan.files.plan)
        self._poll_s = float(plan.expect(Job).job.timers["poll_s"])
        self._run_id = run_id
        self._worker = 0
        self._restarts = 0

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        [worker] = worker_group.workers
        spec = worker_group.spec
        place = {
            "RANK": worker.global_rank,
            "LOCAL_RANK": worker.local_rank,
            "GROUP_RANK": worker_group.group_rank,
            "ROLE_RANK": worker.role_rank,
            "ROLE_NAME": spec.role,
            "WORLD_SIZE": worker.world_size,
            "LOCAL_WORLD_SIZE": spec.local_world_size,
            "GROUP_WORLD_SIZE": worker_group.group_world_size,
            "ROLE_WORLD_SIZE": worker.role_world_size,
            "MASTER_ADDR": worker_group.master_addr,
            "MASTER_PORT": worker_group.master_port,
            "TORCHELASTIC_RESTART_COUNT": self._restarts,
            "TORCHELASTIC_MAX_RESTARTS": spec.max_restarts,
            "TORCHELASTIC_RUN_ID": self._run_id,
            "TORCHELASTIC_USE_AGENT_STORE": spec.rdzv_handler.use_agent_store,
            SLOT_VARIABLE: os.environ[SLOT_VARIABLE],
            NODE_VARIABLE: os.environ[NODE_VARIABLE],
        }
        variables = {name: str(value) for name, value in place.items()}
        [self._worker] = self._parent.fork(_WORKER, self._plan, each=[variables])
        return {worker.local_rank: self._worker}

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        code = self._parent.code_of(self._worker, self._poll_s)
        if code is None:
            return RunResult(state=WorkerState.HEALTHY)
        if code:
            self._restarts += 1
            return RunResult(state=WorkerState.FAILED)
        return RunResult(state=WorkerState.SUCCEEDED, return_values={worker_group.workers[0].global_rank: None})

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, *_: object, **__: object) -> None:
        for number in (death_sig, signal.SIGKILL):
            if self._worker and self._worker not in self._parent.ended:
                processes.send([self._worker], number)
                self._parent.code_of(self._worker, _SHUTDOWN_S)

    def _stop_workers(self, *_: object, **__: object) -> None:
        self._shutdown()


def run(path: str, port: str, run_id: str, descriptor: int) -> NoReturn:
    """Run the agent of a node until its worker has finished, or SIGTERM asks it to leave."""
    plan, slot = LaunchPlan.read_from(path), int(os.environ[SLOT_VARIABLE])
    job = plan.expect(Job).job
    take_output(plan.files.agent_log(slot))
    signal.signal(signal.SIGTERM, _raise_signal)
    rendezvous: FastRendezvous | None = None
    code = 0
    try:
        store = TCPStore(LOOPBACK, int(port), is_master=False, timeout=timedelta(seconds=STORE_S))
        rendezvous = make_rendezvous(
            store,
            run_id,
            job,
            lambda seconds: append(
                plan.files.timeline, event("rendezvous", t=time.monotonic(), slot=slot, seconds=seconds)
            ),
        )
        spec = WorkerSpec(
            role="default",
            local_world_size=1,
            entrypoint=work,
            rdzv_handler=rendezvous,
            max_restarts=MAX_RESTARTS,
            monitor_interval=_FEWEST_S,
            local_addr=LOOPBACK,
        )
        _Agent(spec, Parent(socket.socket(fileno=descriptor), os.getppid()), plan, run_id).run()
        rendezvous.shutdown()  # no node joins any more: the job is at its end
    except SignalException:
        with contextlib.suppress(Exception):  # the others will miss it in time
            if rendezvous is not None:
                rendezvous.leave()
    except BaseException:  # noqa: BLE001 whatever ends an agent is in its log
        traceback.print_exc()
        code = _FAILED
    os._exit(code)


def _raise_signal(number: int, _: object) -> NoReturn:
    raise SignalException(f"agent {os.getpid()} was asked to end", signal.Signals(number))


def work(plan: str) -> NoReturn:
    """Run a worker of a node in this forked process; ``plan``: path of the launch's plan. Does not return."""
    forked.make_independent()
    training.main(plan)
