"""Warm-up of a device until its clocks are steady: a GPU that was idle takes up to seconds to raise them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pytest_distbench.worker.clock.host import HostClock

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext

WINDOW_S = 0.1
"""Calls are made for so long, and give one time."""

WINDOWS = 3
MOST_S = 5.0

_EQUAL = 0.02
"""Times of windows that differ by no more than this share are the same: the steps of a GPU's clock are 1 to 2 %."""


def warm_up(rank: RankContext, call: Callable[[], object]) -> int:
    """Call until the last windows of time took equally long a call, or :data:`MOST_S` are over. A collective call.

    Rank 0's times decide for all. It gives the number of windows that were needed.
    """
    each_s = _time(rank, call, 1)
    times: list[float] = []
    begin = HostClock.perf_counter()
    while True:
        calls = int(rank.agree(max(1.0, WINDOW_S // max(each_s, 1e-6))))
        each_s = _time(rank, call, calls)
        times.append(each_s)
        if rank.agree(float(is_steady(times) or HostClock.perf_counter() - begin > MOST_S)):
            return len(times)


def is_steady(times: Sequence[float]) -> bool:
    """Whether the last :data:`WINDOWS` agree."""
    last = times[-WINDOWS:]
    return len(last) == WINDOWS and max(last) - min(last) <= _EQUAL * statistics.median(last)


def _time(rank: RankContext, call: Callable[[], object], calls: int) -> float:
    rank.synchronize()
    start = HostClock.perf_counter()
    for _ in range(calls):
        call()
    rank.synchronize()
    return (HostClock.perf_counter() - start) / calls
