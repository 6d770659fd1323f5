"""Sees when workers end: by a handle on each process, so that nobody asks again and again which there are."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable

from pytest_distbench.records.timeline import Started, WorkerEnded


class WorkerEnds:
    """The ends of a job's workers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._alive: dict[int, Started] = {}
        """Handle -> the worker it is of."""
        self._gone: list[WorkerEnded] = []

    def watch(self, worker: Started) -> None:
        """Wait for the end of a worker, too."""
        try:
            self._alive[os.pidfd_open(worker.pid)] = worker
        except OSError:  # it has ended already
            self._gone.append(WorkerEnded(t=self._clock(), slot=worker.slot, pid=worker.pid))

    def poll(self) -> list[WorkerEnded]:
        """Those that have ended since the last call. Never blocks."""
        poller = select.poll()
        for handle in self._alive:
            poller.register(handle, select.POLLIN)
        for handle, _ in poller.poll(0):
            worker = self._alive.pop(handle)
            os.close(handle)
            self._gone.append(WorkerEnded(t=self._clock(), slot=worker.slot, pid=worker.pid))
        gone, self._gone = self._gone, []
        return gone

    def close(self) -> None:
        """Let go of all handles."""
        while self._alive:
            os.close(self._alive.popitem()[0])
