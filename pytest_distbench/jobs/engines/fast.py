"""The fast engine: agents and workers forked from one process that has torch loaded, and timers below a second.

Its store is the controller's, as the stock engine's, so that it outlives every node.
"""

from __future__ import annotations

import os
import signal
import socket
import time
import uuid
from collections.abc import Callable

import msgspec

from pytest_distbench.errors import LauncherError
from pytest_distbench.jobs.engines import LOOPBACK, CannotGoOn, EngineSetup
from pytest_distbench.jobs.engines.stock import HANGS_ON_SCALE_UP, STORE_S, Node, NodeEngine
from pytest_distbench.launch.site import processes
from pytest_distbench.launch.starters import NO_REVERSE_DNS
from pytest_distbench.launch.starters.parent import PRELOAD, Fork, Parent, fork_parent
from pytest_distbench.records.timeline import AgentEnded, Rendezvous

_AGENT = "pytest_distbench.jobs.engines.fast_agent"
_THREADS = "OMP_NUM_THREADS"
_LOST = "the process that all agents and workers are forked from has ended, and nobody asked it to"

_parents: list[Parent] = []
"""The one of this process, which jobs of a pool share; empty: it has made none."""


def let_parent_end() -> None:
    """End what agents were forked from, if anything, which runs the exit handlers of the modules it has imported."""
    while _parents:
        _parents.pop().end()


class FastEngine(NodeEngine):
    """Nodes that are forked. The first is to be made before this process has a second thread, or torch."""

    def __init__(self, setup: EngineSetup, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(setup, clock)
        self._id = uuid.uuid4().hex[:12]
        self._gone: list[Node] = []
        """Those whose slot another one has taken; they may not have ended yet."""
        if not _parents:
            os.environ |= {**setup.variables, **NO_REVERSE_DNS, **HANGS_ON_SCALE_UP, _THREADS: "1"}
            run = setup.files.directory.parent.name
            _parents.append(fork_parent(run, setup.projects, [*PRELOAD, _AGENT]))
        self._parent = _parents[0]
        from pytest_distbench.worker.torch_internals import store_on

        self._store = store_on(socket.create_server((LOOPBACK, 0)), timeout_s=STORE_S)

    def join(self, slot: int) -> None:
        from pytest_distbench.jobs.engines.fast_agent import AgentSetup

        if slot in self._nodes:
            self._gone.append(self._nodes[slot])
        setup = AgentSetup(
            job=self._job,
            directory=str(self._files.directory),
            slot=slot,
            word=uuid.uuid4().hex,
            port=self._store.port,
            run_id=self._id,
        )
        order = Fork(entry=f"{_AGENT}:run", arguments=[msgspec.json.encode(setup).decode()], has_line=True)
        try:
            [agent] = self._parent.fork(order)
        except LauncherError as error:
            raise CannotGoOn(f"{_LOST}: {error}") from None
        self._nodes[slot] = Node(agent, setup.word, self._count)

    def leave(self, slot: int) -> None:
        if (agent := self._nodes[slot].agent) not in self._parent.ended:
            processes.send([agent], signal.SIGTERM)

    def kill(self, slot: int) -> None:
        self._nodes[slot].end()

    def poll(self) -> list[Rendezvous | AgentEnded]:
        try:
            self._parent.take()
        except LauncherError:
            raise CannotGoOn(_LOST) from None
        found: list[Rendezvous | AgentEnded] = []
        for slot, node in self._nodes.items():
            found += self._told_end(slot, self._parent.ended.get(node.agent))
        return found

    def close(self) -> None:
        for node in [*self._nodes.values(), *self._gone]:
            node.end()

    def _count(self, agent: int) -> list[int]:
        """An agent and its worker; where nobody can tell any more, the agent."""
        try:
            return self._parent.count(agent)
        except LauncherError:
            return [agent]
