"""Medians and quantiles."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence


def median(values: Iterable[float | None]) -> float | None:
    """Of those there are; None where there is none."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def quantile(values: Sequence[float], q: float) -> float:
    """Linear-interpolation quantile (numpy's default, Hyndman & Fan type 7). ``values`` need not be sorted."""
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = math.ceil(position)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def nearest_rank(values: Sequence[float], q: float) -> float:
    """Nearest-rank quantile: an observed value. The p99 of fewer than 100 values is their maximum."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]
