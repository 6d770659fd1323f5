"""The decision rule for peak memory. Pure, no I/O.

Memory is no clock: no load of the machine changes it, and a launch of the same code needs what the last one needed,
but for what allocators round and caches keep. So there is no statistics in it. With the tolerance, 20 % unless the test
says otherwise, or :data:`LEAST_BYTES`, whichever is more:

- *regressed*: every launch, three at least where there may be so many, is above the largest stored one by more;
- *improved*: every one is below the smallest stored one by more;
- else *unchanged*; *inconclusive* where more than half of the launches are above, and not all.

A rank that needs less than another counts too: the second hungriest is held against the second hungriest, and so on.
Ranks may change places between launches, so none is held against its own number.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pytest_distbench.judging.judgement import Draft, Judgement
from pytest_distbench.records.baseline import BaselineMetric
from pytest_distbench.records.metric import Measurement
from pytest_distbench.units import format_bytes

LEAST_BYTES = 16 * 2**20
"""A smaller change is none, whatever share it is: what a library loads or an allocator keeps for the next time."""

AGREEING_LAUNCHES = 3
"""Launches that have to agree."""


def judge_by_size(
    draft: Draft, current: Sequence[Measurement], baseline: BaselineMetric, tolerance: float
) -> Judgement:
    """Judge it."""
    now, then = ([v for v in values if v is not None] for values in (draft.current, baseline.launches))
    highest = max(then) + _margin(max(then), tolerance)
    middle = statistics.median(then)
    limit = highest / middle - 1 if middle > 0 else None
    is_enough = len(now) >= AGREEING_LAUNCHES
    above = sum(v > highest for v in now)
    if above == len(now):
        return draft.settle("regressed", _whose(draft), limit=limit, is_open=not is_enough)
    if reason := _hungrier(current, baseline.series, tolerance):
        return draft.settle("regressed", reason, limit=limit, is_open=not is_enough)
    if above * 2 > len(now):
        reason = f"above {format_bytes(highest)} in {above} of {len(now)} launches"
        return draft.settle("inconclusive", reason, limit=limit)
    if all(v + _margin(v, tolerance) < min(then) for v in now):
        return draft.settle("improved", limit=limit, is_open=not is_enough)
    return draft.settle("unchanged", limit=limit)


def most_of_ranks(launches: Sequence[Measurement]) -> list[float]:
    """What the ranks needed at most in any of the launches, the hungriest first; empty where they do not say it."""
    ordered = [sorted(m.series, reverse=True) for m in launches]
    return [max(place) for place in zip(*ordered, strict=True)] if len({len(o) for o in ordered}) == 1 else []


def _hungrier(current: Sequence[Measurement], stored: Sequence[float], tolerance: float) -> str:
    """Which place among the ranks needs more in every launch, in words; empty: none, or their number is another one."""
    if not stored or any(len(m.series) != len(stored) for m in current):
        return ""
    ordered = [sorted(m.series, reverse=True) for m in current]
    for place, before in enumerate(stored):
        if all(launch[place] > before + _margin(before, tolerance) for launch in ordered):
            least = min(launch[place] for launch in ordered)
            return f"{place + 1} ranks need {format_bytes(least)} or more, and {place} did in the baseline"
    return ""


def _margin(value: float, tolerance: float) -> float:
    return max(value * tolerance, LEAST_BYTES)


def _whose(draft: Draft) -> str:
    """Who needed most, as far as that is one rank."""
    rank = draft.metric.facts.get("rank")
    return "" if rank is None else f"rank {rank} needs most"
