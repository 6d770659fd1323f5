"""What nodes print, line by line with its time: read from pipes as it comes, not from files now and then."""

from __future__ import annotations

import os
import queue
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from pytest_distbench.records.launch_files import LaunchFiles

_LINE_END = re.compile(rb"\r\n|\n|\r")
_READ_BYTES = 2**16
_END_S = 2.0


@dataclass(frozen=True, slots=True)
class Printed:
    slot: int
    t: float
    text: str


class NodeOutputs:
    """The outputs of all nodes of a job. All of it goes to the agents' logs as well."""

    def __init__(self, files: LaunchFiles, clock: Callable[[], float] = time.monotonic) -> None:
        self._files = files
        self._clock = clock
        self._lines: queue.SimpleQueue[Printed] = queue.SimpleQueue()
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

    def take(self) -> list[Printed]:
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
                    self._lines.put(Printed(slot, t, line.decode(errors="replace")))
        if rest:
            self._lines.put(Printed(slot, self._clock(), rest.decode(errors="replace")))
