"""How far apart in time the launches of one case begin.

Launches in one breath see the same seconds of a shared machine. They agree with each other better than with the next
minute: ten of them know neither how noisy it is, nor whether a slowdown lasts. Where all iterations take the same time,
the machine has no such moods, and nobody waits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from pytest_distbench.records.launch import LaunchRecord

SPACING_S = 1.5
"""From the begin of one launch to that of the next."""

RESTLESS = 0.1
"""``log(p95 / p25)`` of the iterations above which a machine is not quiet: the slow ones take 10 % longer."""


class Pacer:
    """Says when a launch may begin, see :data:`SPACING_S`; with 0 seconds: at once."""

    def __init__(
        self,
        spacing_s: float = SPACING_S,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._spacing_s = spacing_s
        self._clock = clock
        self._sleep = sleep
        self._began_at = -math.inf

    def wait_for_next(self, before: LaunchRecord | None) -> None:
        remaining = self._began_at + self._spacing_s - self._clock()
        if before is not None and remaining > 0 and is_restless(before):
            self._sleep(remaining)
        self._began_at = self._clock()


def is_restless(launch: LaunchRecord) -> bool:
    """Whether something in it was noisy; a time or throughput without iterations may be."""
    noisy = [m.summary for m in launch.measurements if m.is_noisy]
    return any(s is None or s.p25 <= 0 or math.log(s.p95 / s.p25) > RESTLESS for s in noisy)
