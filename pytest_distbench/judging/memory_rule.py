"""The decision rule for peak memory. Pure, no I/O.

Memory is no clock: no load of the machine changes it, and a launch of the same code needs what the last one needed,
but for what allocators round and caches keep. So there is no statistics in it. With the tolerance, 20 % unless the test
says otherwise, or :data:`LEAST_BYTES`, whichever is more:

- *regressed*: every launch, three at least where there may be so many, is above the largest stored one by more;
- *improved*: every one is below the smallest stored one by more;
- else *unchanged*; *inconclusive* where more than half of the launches are above, and not all.
"""

from __future__ import annotations

import statistics

from pytest_distbench.judging.draft import Draft, Judgement
from pytest_distbench.records.baseline import BaselineMetric
from pytest_distbench.units import format_bytes

LEAST_BYTES = 16 * 2**20
"""A smaller change is none, whatever share it is: what a library loads or an allocator keeps for the next time."""

AGREEING_LAUNCHES = 3
"""Launches that have to agree."""


def judge_by_size(draft: Draft, baseline: BaselineMetric, tolerance: float) -> Judgement:
    """Judge it.

    Args:
        draft: with its values of this run, in bytes.
        baseline: the stored ones, at least one.
        tolerance: as a fraction.
    """
    now, then = ([v for v in values if v is not None] for values in (draft.current, baseline.launches))
    highest = max(then) + _margin(max(then), tolerance)
    middle = statistics.median(then)
    limit = highest / middle - 1 if middle > 0 else None
    is_enough = len(now) >= AGREEING_LAUNCHES
    above = sum(v > highest for v in now)
    if above == len(now):
        return draft.settle("regressed", _whose(draft), limit=limit, is_open=not is_enough)
    if above * 2 > len(now):
        reason = f"above {format_bytes(highest)} in {above} of {len(now)} launches"
        return draft.settle("inconclusive", reason, limit=limit)
    if all(v + _margin(v, tolerance) < min(then) for v in now):
        return draft.settle("improved", limit=limit, is_open=not is_enough)
    return draft.settle("unchanged", limit=limit)


def _margin(value: float, tolerance: float) -> float:
    return max(value * tolerance, LEAST_BYTES)


def _whose(draft: Draft) -> str:
    """Who needed most, as far as that is one rank."""
    rank = draft.metric.facts.get("rank")
    return "" if rank is None else f"rank {rank} needs most"
