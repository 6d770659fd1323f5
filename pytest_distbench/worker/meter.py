"""Meter: quieter witnesses of what an iteration cost than the clock."""

from __future__ import annotations

import resource
import time


class Meter:
    """CPU time and voluntary context switches of this process, all threads, per iteration.

    On a busy machine they move far less than the clock (docs/fingerprints.md has figures). Two microseconds each time,
    outside the clock.

    Attributes:
        cpu_s: seconds per iteration.
        waits: times a thread went to sleep, per iteration.
    """

    def __init__(self) -> None:
        self.cpu_s: list[float] = []
        self.waits: list[float] = []
        self._start = (0.0, 0)

    def start(self) -> None:
        """An iteration begins."""
        self._start = self._now()

    def stop(self) -> None:
        """It is over."""
        cpu_s, waits = self._now()
        self.cpu_s.append(cpu_s - self._start[0])
        self.waits.append(waits - self._start[1])

    @staticmethod
    def _now() -> tuple[float, int]:
        return time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
