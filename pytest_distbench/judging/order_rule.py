"""The decision rule for values without a ratio (zero, negative): by order and plain difference. Pure, no I/O.

Noisy metrics are judged on logarithms, which such values do not have: 4 GiB are not so many per cent more than 0 B.
That they are more is still beyond doubt where

1. every new value is worse than every old one, beyond the tolerance where that says something, and
2. the means differ by more than the noise allows, in the metric's own unit.

Then the metric *regressed*; the other way round it *improved*. All else is *inconclusive*, so that nothing becomes
green because it was zero once. A clock that reads 0 has timed nothing: that is no answer, and no baseline.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from pytest_distbench.judging.stored_rule import Answer
from pytest_distbench.records.metric import Measurement
from pytest_distbench.units import format_quantity, format_values, why_impossible

_CONTINUOUS = ("s", "B", "B/s")
"""Units of what is no count, whether a value is whole or not."""

Noise = Callable[[Sequence[float], Sequence[float]], float]
"""The largest difference between the means of old and new values that chance explains, in their unit."""


def have_ratios(*values: float) -> bool:
    """Whether the rules on logarithms can judge these."""
    return min(values) > 0


def compare_by_order(
    old: Sequence[float],
    new: Sequence[float],
    noise: Noise,
    *,
    sign: float,
    tolerance: float,
    unit: str,
    is_enough: bool,
    is_last: bool,
) -> Answer:
    """The rule.

    Args:
        old: what is compared with.
        new: of this run.
        noise: of values scaled to at most 1, so that no square overflows.
        sign: 1 where a larger number is worse, else -1.
        tolerance: as a fraction.
        unit: of the values, for the reason.
        is_enough: whether there are launches enough for an answer.
        is_last: there will be no more.
    """
    if len({*old, *new}) == 1:
        return Answer("unchanged", "equal in every launch")
    kind = "regressed" if _is_beyond(old, new, sign, tolerance) else ""
    kind = kind or ("improved" if _is_beyond(old, new, -sign, tolerance) else "")
    if kind and is_enough:
        largest = max(map(abs, (*old, *new)))
        then, now = [v / largest for v in old], [v / largest for v in new]
        if abs(statistics.fmean(now) - statistics.fmean(then)) > noise(then, now):
            if kind == "improved" and (why := why_impossible(min(new), unit)):
                return Answer("inconclusive", why)
            return Answer(kind, f"{format_values(old, unit)} -> {format_values(new, unit)} in every launch")
    if kind and not is_last:
        return Answer("inconclusive", "more launches are needed", is_open=True)
    return Answer("inconclusive", _why_no_answer((*old, *new), unit))


def why_nothing_was_timed(measurement: Measurement) -> str:
    """Why a clock that reads 0 says nothing; empty: it reads more, or this is no clock."""
    beside = measurement.companions
    if measurement.unit != "s" or measurement.value != 0 or "cpu_s" not in beside:
        return ""
    if "host_s" not in beside:
        return "the clock reads 0 s: nothing was timed"
    host = format_quantity(beside["host_s"], "s")
    return (
        "the clock reads 0 s: nothing ran on the device in this loop, or only on streams that its current one does not "
        f"wait for; the hosts of all ranks took {host} per iteration"
    )


def _is_beyond(old: Sequence[float], new: Sequence[float], sign: float, tolerance: float) -> bool:
    worst = max(sign * v for v in old)
    allowed = worst * (1 + tolerance) if worst > 0 else worst / (1 + tolerance)
    return min(sign * v for v in new) > allowed


def _why_no_answer(values: Sequence[float], unit: str) -> str:
    reason = "a value is zero or negative: it has no ratio, and the order of the launches does not settle it"
    is_count = unit not in _CONTINUOUS and all(float(v).is_integer() for v in values)
    return f"{reason}; record a count with better='exact'" if is_count else reason
