"""Meter: quieter witnesses of what an iteration cost than the clock."""

from __future__ import annotations

import resource

from pytest_distbench.worker.clock.delay import Delay
from pytest_distbench.worker.clock.host import HostClock


class Meter:
    """CPU time and voluntary context switches of this process, all threads, per iteration.

    On a busy machine they move far less than the clock (docs/fingerprints.md has figures). Two microseconds each time,
    outside the clock. On a GPU they tell less, since a host that waits for the device spins; there the host's own share
    stands beside them.

    All of it is per iteration; ``waits`` are times a thread went to sleep. What stands beside a clock of the device is
    by name: ``host_s``, seconds of the host in it; ``exposed``, 1 where the device had to wait for the host;
    ``lead_s``, seconds by which the host was ahead of the device at its end. CPU time that
    a delay has taken is left out.
    """

    def __init__(self, delay: Delay) -> None:
        self._delay = delay
        self.cpu_s: list[float] = []
        self.waits: list[float] = []
        self.of_host: dict[str, list[float]] = {}
        self._start = (0.0, 0)

    def start(self) -> None:
        """An iteration begins, or several."""
        self._start = self._now()

    def stop(self, iterations: int = 1) -> None:
        """It is over; of several their mean is kept."""
        cpu_s, waits = self._now()
        self.cpu_s.append((cpu_s - self._start[0]) / iterations)
        self.waits.append((waits - self._start[1]) / iterations)

    def note(self, **of_host: float) -> None:
        """What the host did in one iteration that the device is measured in."""
        for name, value in of_host.items():
            self.of_host.setdefault(name, []).append(value)

    def witnesses(self) -> dict[str, list[float]]:
        """All of them by name."""
        return {"cpu_s": self.cpu_s, "waits": self.waits, **self.of_host}

    def _now(self) -> tuple[float, int]:
        return HostClock.process_time() - self._delay.awake_s, resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
