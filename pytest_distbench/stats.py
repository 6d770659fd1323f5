"""Small-sample statistics over launches, in plain Python.

SciPy would do all of this, but pytest's own process must not import numpy because of us; the tests compare
every function here with SciPy.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache


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


def student_t_cdf(t: float, df: int) -> float:
    """Cumulative probability of Student's t with integer degrees of freedom.

    The finite trigonometric sums of Abramowitz & Stegun 26.7.3 and 26.7.4 (exact for integer ``df``).
    """
    theta = math.atan2(t, math.sqrt(df))
    cos2 = math.cos(theta) ** 2
    term = total = 1.0 if df % 2 == 0 else math.cos(theta)
    for k in range(2 if df % 2 == 0 else 3, df - 1, 2):
        term *= cos2 * (k - 1) / k
        total += term
    if df % 2 == 0:
        inner = math.sin(theta) * total
    else:
        inner = 2 / math.pi * (theta + (math.sin(theta) * total if df > 1 else 0.0))
    return 0.5 + inner / 2


@lru_cache(maxsize=4096)
def student_t_quantile(p: float, df: int) -> float:
    """Inverse of :func:`student_t_cdf` for ``0.5 <= p < 1``, by bisection to full precision."""
    low, high = 0.0, 1.0
    while student_t_cdf(high, df) < p:
        low, high = high, high * 2
        if high > 1e12:
            return math.inf
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if student_t_cdf(middle, df) < p:
            low = middle
        else:
            high = middle
    return high


def normal_quantile(p: float) -> float:
    """Inverse of the standard normal distribution."""
    return statistics.NormalDist().inv_cdf(p)


def pooled_stdev(a: Sequence[float], b: Sequence[float]) -> tuple[float, int]:
    """Common standard deviation of two samples and its degrees of freedom. Needs three values in all."""
    df = len(a) + len(b) - 2
    squares = sum((x - statistics.fmean(a)) ** 2 for x in a) + sum((x - statistics.fmean(b)) ** 2 for x in b)
    return math.sqrt(squares / df), df
