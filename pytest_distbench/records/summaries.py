"""Order statistics of several numbers: medians, quantiles, and the quantiles that stand for a distribution; groups."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import TypeVar


def median(values: Iterable[float | None]) -> float | None:
    """Of those there are; None where there is none."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Of those there are, all above 0; None where there is none."""
    known = [value for value in values if value is not None]
    return statistics.geometric_mean(known) if known else None


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


MOST_KEPT = 41
"""Values of a distribution: one for each 2.5 %."""


FEWEST_OF_SERIES = 4
"""Values of a series with which its geometric mean is kept; the fastest quarter of fewer is one value."""


def distribution(values: Sequence[float]) -> list[float]:
    """Observed values, ascending, at even steps from the least to the largest; of few values all. Four digits each."""
    ordered = sorted(values)
    kept = min(len(ordered), MOST_KEPT)
    places = (round(i * (len(ordered) - 1) / max(1, kept - 1)) for i in range(kept))
    return [float(f"{ordered[place]:.4g}") for place in places]


Key = TypeVar("Key")
Item = TypeVar("Item")


def grouped(pairs: Iterable[tuple[Key, Item]]) -> dict[Key, list[Item]]:
    """What has the same key, in the order in which it comes."""
    found: dict[Key, list[Item]] = {}
    for key, item in pairs:
        found.setdefault(key, []).append(item)
    return found
