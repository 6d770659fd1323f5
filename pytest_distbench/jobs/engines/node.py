"""The processes of one node: its agent and its workers, with all below them, wherever in the tree of processes.

And what an engine does to them, however it has started them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from pytest_distbench.jobs.engines.contract import EngineSetup
from pytest_distbench.launch.logs import tail
from pytest_distbench.launch.site import processes
from pytest_distbench.records.elastic import NODE_VARIABLE
from pytest_distbench.records.timeline import AgentEnded

_KILL_S = 10.0
_GONE_S = 1.0
_LOOK_S = 0.002


@dataclass
class Node:
    """A node of an elastic job.

    Its processes have its word in their environment. Those that were forked show another's environment, and announce
    themselves in a file.
    """

    agent: int
    word: str
    announced: Path | None = None
    is_told: bool = False

    def members(self) -> list[psutil.Process]:
        """All its processes: those of its family, and those that got away but for the word in their environment."""
        found = [*processes.find_marked(NODE_VARIABLE, self.word), *self._family()]
        return [p for p in {p.pid: p for p in found}.values() if p.pid != os.getpid()]

    def send(self, number: signal.Signals) -> None:
        """Send all its processes a signal."""
        processes.send([process.pid for process in self.members()], number)

    def kill_workers(self) -> None:
        """SIGKILL all but the agent."""
        for find in (self._family, self.members):
            processes.send([process.pid for process in find() if process.pid != self.agent], signal.SIGKILL)

    def end(self) -> None:
        """SIGKILL all its processes, until there is none: one may start others meanwhile."""
        _kill(self._family())  # at once: to look through the environment of all processes takes a while
        deadline = time.monotonic() + _KILL_S
        while (members := self.members()) and time.monotonic() < deadline:
            _kill(members)

    def _family(self) -> list[psutil.Process]:
        """The agent, those that announced themselves, and all below them."""
        return processes.family([self.agent] if self.announced is None else _announced(self.announced))


class NodeEngine:
    """What engines have in common: a node per slot, whose processes are found."""

    def __init__(self, setup: EngineSetup, clock: Callable[[], float]) -> None:
        self._job = setup.job
        self._files = setup.files
        self._clock = clock
        self._nodes: dict[int, Node] = {}

    def crash(self, slot: int) -> None:
        self._nodes[slot].kill_workers()

    def stop(self, slot: int) -> None:
        self._nodes[slot].send(signal.SIGSTOP)

    def go_on(self, slot: int) -> None:
        self._nodes[slot].send(signal.SIGCONT)

    def log(self, slot: int) -> str:
        return tail(self._files.agent_log(slot))

    def _told_end(self, slot: int, code: int | None) -> list[AgentEnded]:
        """The end of the agent in a slot, once; None: it lives."""
        node = self._nodes[slot]
        if code is None or node.is_told:
            return []
        node.is_told = True
        return [AgentEnded(t=self._clock(), slot=slot, code=code)]


def _kill(members: Sequence[psutil.Process]) -> None:
    """SIGKILL processes, the first one first, and wait until they are gone. How they ended is left to their parent."""
    for process in members:
        with contextlib.suppress(psutil.Error):
            process.kill()
    deadline = time.monotonic() + _GONE_S
    while any(processes.is_alive(process.pid) for process in members) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)


def announce(path: Path, pid: int) -> None:
    """Note a process as one of a node's; one that has ended already need not be."""
    began = _began(pid)
    if began:
        with open(path, "a") as file:
            file.write(f"{pid} {began}\n")


def _announced(path: Path) -> list[int]:
    """Those announced that live; a number that the kernel has given to another process meanwhile is none of them."""
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return []
    pairs = (line.partition(" ") for line in lines)
    return [int(pid) for pid, _, began in pairs if pid.isdecimal() and began and _began(int(pid)) == began]


def _began(pid: int) -> str:
    """When a process was made, in the kernel's ticks (proc(5)); empty where there is none."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    return ""
