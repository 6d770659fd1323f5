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


def wait_for_next(before: LaunchRecord | None, began_at: float, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Wait until the next launch of a case may begin.

    Args:
        before: the launch before it; None: it is the first.
        began_at: when that one began; CLOCK_MONOTONIC seconds.
        sleep: waits for so many seconds.
    """
    if before is not None and is_restless(before):
        sleep(max(0.0, began_at + SPACING_S - time.monotonic()))


def is_restless(launch: LaunchRecord) -> bool:
    """Whether something in it was noisy; a time or throughput without iterations may be."""
    noisy = [m.summary for m in launch.measurements if m.is_noisy]
    return any(s is None or s.p25 <= 0 or math.log(s.p95 / s.p25) > RESTLESS for s in noisy)
