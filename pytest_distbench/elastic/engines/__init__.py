"""Engines: what changes the membership of a job, and tells what its agents do. It decides nothing.

What nodes print is read from pipes as it comes, line by line with its time, not from files now and then.
"""

from __future__ import annotations

import os
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pytest_distbench.elastic.records import ElasticJob
from pytest_distbench.elastic.timeline import event
from pytest_distbench.records.event import Event
from pytest_distbench.records.launch_files import LaunchFiles

_LINE_END = re.compile(rb"\r\n|\n|\r")
_READ_BYTES = 2**16
_END_S = 2.0


class NodeOutputs:
    """The outputs of all nodes of a job. All of it goes to the agents' logs as well."""

    def __init__(self, files: LaunchFiles, clock: Callable[[], float] = time.monotonic) -> None:
        self._files = files
        self._clock = clock
        self._lines: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def open(self, slot: int) -> tuple[int, int]:
        """Two descriptors for a new node to print to, stdout and stderr; the caller closes them."""
        theirs = []
        for _ in range(2):
            ours, descriptor = os.pipe()
            theirs.append(descriptor)
            thread = threading.Thread(target=self._follow, args=(slot, ours), daemon=True)
            thread.start()
            self._threads.append(thread)
        return theirs[0], theirs[1]

    def take(self) -> list[Event]:
        """The whole lines since the last call. Never blocks."""
        found = []
        while not self._lines.empty():
            found.append(self._lines.get())
        return found

    def finish(self) -> None:
        """Wait, a moment at most, until all that nodes that have ended printed is there."""
        deadline = time.monotonic() + _END_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _follow(self, slot: int, descriptor: int) -> None:
        rest = b""
        with open(descriptor, "rb", buffering=0) as pipe, open(self._files.agent_log(slot), "ab", buffering=0) as log:
            while data := pipe.read(_READ_BYTES):
                t = self._clock()
                log.write(data)
                *lines, rest = _LINE_END.split(rest + data)
                for line in lines:
                    self._lines.put(event("printed", t=t, slot=slot, text=line.decode(errors="replace")))
        if rest:
            self._lines.put(event("printed", t=self._clock(), slot=slot, text=rest.decode(errors="replace")))


LOOPBACK = "127.0.0.1"
STORE_S = 60.0
"""How long agents and workers wait for the store."""
MAX_RESTARTS = 1000
"""Those that torchrun counts while nodes only join: who loses its peers a moment before it hears of the change."""


class CannotGoOn(Exception):
    """The job has failed; the text says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """What an engine is made of.

    Attributes:
        files: of the launch; the plan is among them.
        projects: modules to import once for all nodes, where that is possible (``distbench_preload``).
        outputs: what nodes that run a script print to; None: to their logs.
        devices: the CUDA device of each slot, where its worker takes the first that it sees, as a script does.
    """

    job: ElasticJob
    files: LaunchFiles
    variables: Mapping[str, str]
    projects: Sequence[str] = ()
    script: Sequence[str] = ()
    outputs: NodeOutputs | None = None
    devices: Sequence[int] = ()


class Engine(Protocol):
    """Nodes of one elastic job."""

    def join(self, slot: int) -> None:
        """Start a node. Returns at once."""

    def leave(self, slot: int) -> None:
        """Ask a node to go. Returns at once."""

    def kill(self, slot: int) -> None:
        """Lose a node: all its processes end at once."""

    def crash(self, slot: int) -> None:
        """Lose the worker of a node, and not its agent."""

    def stop(self, slot: int) -> None:
        """Let all processes of a node stand still."""

    def go_on(self, slot: int) -> None:
        """Let them go on."""

    def poll(self) -> list[Event]:
        """What has happened since the last call, and agents do not note themselves. Never blocks.

        An engine that has broken down raises :class:`CannotGoOn`.
        """

    def log(self, slot: int) -> str:
        """The last lines of what the slot's agents have printed."""

    def close(self) -> None:
        """End all nodes."""
