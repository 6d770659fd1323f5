"""A torchrun group without torchrun's process: the real LocalElasticAgent, tuned for one short group on one host.

Imported in the agent process only.
"""

from __future__ import annotations

import importlib
import os
import socket
import time
import traceback
import uuid
from collections.abc import Callable
from pathlib import Path

from torch import distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined] # exported at run time only
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from pytest_distbench.worker.python_internals import end_with
from pytest_distbench.worker.torch_internals import WokenByRanks, store_on

_LOOPBACK = "127.0.0.1"
_STORE_TIMEOUT_S = 60.0
_EXIT_BARRIER_S = 30
_SHUTDOWN_S = 5


class LoopbackRendezvous(RendezvousHandler):
    """A rendezvous of one node: its store is a TCPStore this process binds to a free port itself.

    The ranks join that store (TORCHELASTIC_USE_AGENT_STORE), as under torchrun. Nobody probes for a port, and the
    random delay of torch's own c10d rendezvous (0 to 0.3 s) does not apply.
    """

    def __init__(self) -> None:
        self._run_id = uuid.uuid4().hex[:12]
        self._store: TCPStore | None = _new_store()
        self._rounds = 0

    def get_backend(self) -> str:
        return "distbench-loopback"

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        assert self._store is not None
        if self._rounds:
            self._store = _new_store()  # ranks that are started again find no keys of those before
        self._rounds += 1
        store = PrefixStore(f"agent/{self._run_id}", self._store)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(_LOOPBACK, self._store.port))

    def is_closed(self) -> bool:
        return self._store is None

    def set_closed(self) -> None:
        self._store = None

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        self._store = None
        return True


def _new_store() -> TCPStore:
    return store_on(socket.create_server((_LOOPBACK, 0)), timeout_s=_STORE_TIMEOUT_S)


class _Agent(WokenByRanks, LocalElasticAgent):
    """The elastic agent, woken by its ranks instead of polling them."""


class Group:
    """One process group from start to exit."""

    def __init__(self, plan: str, processes: int, *, on_start: Callable[[list[int]], None]) -> None:
        self.stamps: dict[str, float] = {"asked": time.monotonic()}
        self._rendezvous = LoopbackRendezvous()
        self._agent = _Agent(
            spec=WorkerSpec(
                role="default",
                local_world_size=processes,
                entrypoint=_enter,
                args=(plan,),
                rdzv_handler=self._rendezvous,
                max_restarts=0,
                monitor_interval=0.001,
                local_addr=_LOOPBACK,
            ),
            # A real folder: with os.devnull torch tails that file, and stopping the tail takes up to 0.1 s.
            logs_specs=DefaultLogsSpecs(log_dir=str(Path(plan).parent)),
            start_method="forkserver",
            exit_barrier_timeout=_EXIT_BARRIER_S,
            shutdown_s=_SHUTDOWN_S,
            on_start=on_start,
        )

    def run(self) -> None:
        """Start the ranks and wait for the last one."""
        self.stamps["rendezvous"] = time.monotonic()
        try:
            self._agent.run()
        finally:
            self._rendezvous.shutdown()
            self.stamps["ended"] = time.monotonic()

    def exit_codes(self) -> dict[int, int]:
        """Rank -> exit code of the ranks that have ended."""
        return self._agent.exit_codes()


def register_rendezvous(name: str) -> None:
    """Make :class:`LoopbackRendezvous` known to torchrun in this process; from torch 2.6 on an entry point does."""
    rendezvous_handler_registry.register(name, lambda parameters: LoopbackRendezvous())


def backends() -> dict[str, bool]:
    """Which backends this torch can run."""
    is_built = {
        name: dist.is_available() and getattr(dist, f"is_{name}_available", lambda: False)()
        for name in ("gloo", "nccl", "mpi", "ucc", "xccl")
    }
    return {**is_built, "fake": True}


def _enter(plan: str) -> None:
    """What a rank runs. One that did not pass has left its report and never comes back: it waits to be ended.

    The worker is named, not imported: this side of the package does not depend on it.
    """
    try:
        importlib.import_module("pytest_distbench.worker.forked").begin_anew()
        end = importlib.import_module("pytest_distbench.worker.main").run_rank(plan)
    except BaseException:  # noqa: BLE001 torch would write it to a file below TMPDIR, which nobody reads or removes
        traceback.print_exc()
        os._exit(1)
    end_with(end)
