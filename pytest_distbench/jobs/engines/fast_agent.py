"""The agent of a node of the fast engine: a real LocalElasticAgent, in a process from the shared forkserver.

Its workers come from the same forkserver, and so are no children of it: each announces itself (``node.py``).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

from torch.distributed import TCPStore  # type: ignore[attr-defined] # exported at run time only
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException

from pytest_distbench.jobs.engines.contract import LOOPBACK, MAX_RESTARTS
from pytest_distbench.jobs.engines.fast_rendezvous import FastRendezvous, make_rendezvous
from pytest_distbench.jobs.engines.node import announce
from pytest_distbench.jobs.engines.stock import STORE_S
from pytest_distbench.records.elastic import NODE_VARIABLE, SLOT_VARIABLE, ElasticJob
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.record import Record
from pytest_distbench.records.timeline import Rendezvous, append
from pytest_distbench.worker import forked
from pytest_distbench.worker.elastic import life as elastic
from pytest_distbench.worker.process import take_output
from pytest_distbench.worker.python_internals import share_forkserver
from pytest_distbench.worker.torch_internals import WokenByRanks

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
    elastic.main(plan)
