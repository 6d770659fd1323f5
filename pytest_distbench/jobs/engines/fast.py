"""The fast engine: agents and workers from one forkserver that has torch loaded, and timers below a second.

Its store is the controller's, as the stock engine's, so that it outlives every node.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import time
import uuid
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess

from pytest_distbench.jobs.engines.contract import LOOPBACK, CannotGoOn, EngineSetup
from pytest_distbench.jobs.engines.stock import HANGS_ON_SCALE_UP, STORE_S, Node, NodeEngine, announce
from pytest_distbench.launch.site import processes
from pytest_distbench.launch.starters import forkserver
from pytest_distbench.launch.starters.contract import NO_REVERSE_DNS
from pytest_distbench.records.timeline import AgentEnded, Rendezvous

_PRELOAD = [*forkserver.PRELOAD, "pytest_distbench.jobs.engines.fast_agent"]
_THREADS = "OMP_NUM_THREADS"


class FastEngine(NodeEngine):
    """Nodes that are forked. The first is to be made before this process has a second thread, or torch.

    The forkserver ends when its process says so (``forkserver.let_helpers_end``): another engine may need it.
    """

    def __init__(self, setup: EngineSetup, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(setup, clock)
        self._id = uuid.uuid4().hex[:12]
        self._agents: dict[int, ForkServerProcess] = {}
        self._gone: list[Node] = []
        """Those whose slot another one has taken; they may not have ended yet."""
        self._count = 0
        os.environ |= {**setup.variables, **NO_REVERSE_DNS, **HANGS_ON_SCALE_UP, _THREADS: "1"}
        if not forkserver.is_alive():  # jobs of a pool share one
            forkserver.preload(_PRELOAD)
            run = setup.files.directory.parent.name
            forkserver.start(setup.files.sockets, semaphores=run, projects=setup.projects)
        os.environ[_THREADS] = setup.variables.get(_THREADS, "1")  # workers set as many as their plan says
        from pytest_distbench.worker.torch_internals import store_on

        self._store = store_on(socket.create_server((LOOPBACK, 0)), timeout_s=STORE_S)

    def join(self, slot: int) -> None:
        from pytest_distbench.jobs.engines import fast_agent

        self._check()
        if slot in self._nodes:
            self._gone.append(self._nodes[slot])
        announced = self._files.directory / f"node{self._count}.pids"
        self._count += 1
        setup = fast_agent.AgentSetup(
            job=self._job,
            directory=str(self._files.directory),
            slot=slot,
            word=uuid.uuid4().hex,
            announced=str(announced),
            port=self._store.port,
            run_id=self._id,
        )
        agent = multiprocessing.get_context("forkserver").Process(target=fast_agent.run, args=(setup,))
        agent.start()
        assert agent.pid is not None
        announce(announced, agent.pid)
        self._agents[slot] = agent
        self._nodes[slot] = Node(agent.pid, setup.word, announced)

    def leave(self, slot: int) -> None:
        agent = self._agents[slot]
        if agent.is_alive():
            processes.send([self._nodes[slot].agent], signal.SIGTERM)

    def kill(self, slot: int) -> None:
        self._nodes[slot].end()

    def poll(self) -> list[Rendezvous | AgentEnded]:
        self._check()
        found: list[Rendezvous | AgentEnded] = []
        for slot, agent in self._agents.items():
            found += self._told_end(slot, agent.exitcode)
        if any(agent.exitcode == forkserver.LOST for agent in self._agents.values()):
            forkserver.has_died()  # waits: it is seen to be dead a moment after its pipes have closed
        self._check()  # where it has died, these codes are made up
        return found

    def close(self) -> None:
        for node in [*self._nodes.values(), *self._gone]:
            node.end()

    def _check(self) -> None:
        """Nothing can be started or told of any more where the forkserver is gone."""
        if not forkserver.is_alive():
            raise CannotGoOn(
                "the forkserver that all agents and workers are forked from has ended, and nobody asked it to"
            )
