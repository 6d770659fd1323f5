"""Small-sample statistics over launches, in plain Python. Pure.

SciPy would do all of it, but pytest's own process must not import numpy because of us; the tests compare every function
with SciPy.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache

RUN_ERROR_RATE = 0.02  # chance that a run on unchanged code has any false regression, shared over its comparisons

BASELINE_ERROR_RATE = 0.001
"""Chance that one comparison with a stored baseline is a false regression, however few a run makes: a test that is red
once in fifty runs for nothing is not believed the next time."""

BLIND_LIMIT = 1.0  # noise that allows more than +100 % decides nothing: it hides a doubling

MEDIAN_CONFIDENCE = 0.9  # of the interval that is shown with a median

LARGEST_EXPONENT = 700.0  # ``exp`` of more overflows a float


def shared_error_rate(comparisons: int) -> float:
    return RUN_ERROR_RATE / max(1, comparisons)


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
    return statistics.NormalDist().inv_cdf(p)


def chi_square_quantile(p: float, df: int) -> float:
    """Inverse of the chi-square distribution, as Wilson and Hilferty (1931) approximate it: to 3 % from ``df`` 4 on."""
    return df * (1 - 2 / (9 * df) + normal_quantile(p) * math.sqrt(2 / (9 * df))) ** 3


def pooled_stdev(a: Sequence[float], b: Sequence[float]) -> float:
    """Common standard deviation of two samples, with ``len(a) + len(b) - 2`` degrees of freedom (at least 1)."""
    squares = sum((x - statistics.fmean(a)) ** 2 for x in a) + sum((x - statistics.fmean(b)) ** 2 for x in b)
    return math.sqrt(squares / (len(a) + len(b) - 2))


def worse_pairs(stored: Sequence[float], new: Sequence[float], sign: float = 1.0) -> float:
    """Share of the pairs of a new and a stored value in which the new one is worse; larger is worse if ``sign`` is 1.

    Mann and Whitney's U over the number of pairs. Ties count as not worse.
    """
    return sum(sign * x > sign * y for x in new for y in stored) / (len(stored) * len(new))


def noise_limit(sigma: float, stored: int, new: int, alpha: float, *, shift: float = 0.0) -> float:
    """The largest difference between the means of two samples that chance explains, at one-sided error rate ``alpha``.

    ``t(1 - alpha, stored + new - 2) * sigma * sqrt(1/stored + 1/new + shift)``: Student's two-sample test, with the
    variance between the two occasions, ``shift``, in units of ``sigma`` squared.
    """
    return student_t_quantile(1 - alpha, stored + new - 2) * sigma * math.sqrt(1 / stored + 1 / new + shift)


def smallest_detectable(
    sigma: float,
    stored: int,
    new: int,
    alpha: float,
    power: float = 0.9,
    *,
    shift: float = 0.0,
    tolerance: float = 0.0,
) -> float:
    """Smallest slowdown, as a fraction, that is detected with this power.

    On logarithms the difference of the means must exceed the threshold, and both scatter: the difference with variance
    ``sigma^2 (1/stored + 1/new)``, a threshold made of an estimated ``sigma`` with ``limit^2 / (2 df)``. So it is
    ``exp(limit + z(power) sqrt(both)) - 1``, close to what the noncentral t distribution gives. (Without the second
    term it would be the textbook's ``exp((t + z) sigma sqrt(1/stored + 1/new)) - 1``, which promises too much.)
    """
    noise = noise_limit(sigma, stored, new, alpha, shift=shift)
    limit = math.log1p(tolerance)
    scatter = sigma**2 * (1 / stored + 1 / new)
    if noise > limit:
        limit = noise
        scatter += noise**2 / (2 * (stored + new - 2))
    return math.expm1(min(limit + normal_quantile(power) * math.sqrt(scatter), LARGEST_EXPONENT))


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The two values between which the true median lies in at least nine of ten samples, or None if they are too few.

    A sign test: nothing is assumed about how the values scatter, but that they are independent.
    """
    ordered, outside, inner = sorted(values), 0.5 ** len(values), 0
    if 2 * outside > 1 - MEDIAN_CONFIDENCE:
        return None
    while True:
        outside += math.comb(len(ordered), inner + 1) * 0.5 ** len(ordered)
        if 2 * outside > 1 - MEDIAN_CONFIDENCE:
            return ordered[inner], ordered[-1 - inner]
        inner += 1
