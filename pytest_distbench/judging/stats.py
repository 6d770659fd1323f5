"""Small-sample statistics over launches, in plain Python, and change points over a history of runs. Pure.

SciPy would do all of the first, but pytest's own process must not import numpy because of us; the tests compare every
function with SciPy.

A change point is where a metric's level moved for good; a level holds for at least :data:`LEAST_RUNS` runs: one that
stands out alone is noise. The segments are those whose squared deviations from their means are smallest, at a price for
each further one (PELT: Killick, Fearnhead and Eckley, 2012, in the library *ruptures*), of the logarithms, with single
outliers taken out by a running median of three. Each change is then tested by itself: the runs before it, back to the
change before, against those after it, by the rank-sum test of Mann and Whitney. What is not certain enough is taken out
again, the least certain first. Runs of one machine are not independent of each other: a machine that is slower for a
week is a change, too.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from pytest_distbench.errors import ConfigurationError

RUN_ERROR_RATE = 0.02
"""Chance that a run on unchanged code has any false regression: shared over its comparisons."""

BASELINE_ERROR_RATE = 0.001
"""Chance that one comparison with a stored baseline is a false regression, however few a run makes: a test that is red
once in fifty runs for nothing is not believed the next time."""

BLIND_LIMIT = 1.0
"""Noise that allows more than +100 % is no judgement: it hides a doubling."""

MEDIAN_CONFIDENCE = 0.9
"""Of the interval that is shown beside a median."""

LARGEST_EXPONENT = 700.0
"""``exp`` of more is no float any more."""


def shared_error_rate(comparisons: int) -> float:
    return RUN_ERROR_RATE / max(1, comparisons)


def baseline_error_rate(comparisons: int) -> float:
    return min(BASELINE_ERROR_RATE, shared_error_rate(comparisons))


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
    """Common standard deviation of two samples, of ``len(a) + len(b) - 2`` degrees of freedom (at least 1)."""
    squares = sum((x - statistics.fmean(a)) ** 2 for x in a) + sum((x - statistics.fmean(b)) ** 2 for x in b)
    return math.sqrt(squares / (len(a) + len(b) - 2))


def worse_pairs(stored: Sequence[float], new: Sequence[float], sign: float = 1.0) -> float:
    """Share of the pairs of a new and a stored value in which the new one is worse; larger is worse if ``sign`` is 1.

    Mann and Whitney's U over the number of pairs. Ties count as not worse.
    """
    return sum(sign * x > sign * y for x in new for y in stored) / (len(stored) * len(new))


def noise_limit(sigma: float, stored: int, new: int, alpha: float, *, drift: float = 0.0) -> float:
    """The largest difference between the means of two samples that chance explains, at one-sided error rate ``alpha``.

    ``t(1 - alpha, stored + new - 2) * sigma * sqrt(1/stored + 1/new + drift)``: Student's two-sample test, with the
    variance between the two occasions, ``drift``, in units of ``sigma`` squared.
    """
    return student_t_quantile(1 - alpha, stored + new - 2) * sigma * math.sqrt(1 / stored + 1 / new + drift)


def detectable_slowdown(
    sigma: float,
    stored: int,
    new: int,
    alpha: float,
    power: float = 0.9,
    *,
    drift: float = 0.0,
    tolerance: float = 0.0,
) -> float:
    """Smallest slowdown, as a fraction, that is found with this power.

    On logarithms the difference of the means must exceed the limit, and both scatter: the difference with variance
    ``sigma^2 (1/stored + 1/new)``, a limit made of an estimated ``sigma`` with ``limit^2 / (2 df)``. So it is
    ``exp(limit + z(power) sqrt(both)) - 1``, close to what the noncentral t distribution says. (Without the second
    term it would be the textbook's ``exp((t + z) sigma sqrt(1/stored + 1/new)) - 1``, which promises too much.)

    Args:
        sigma: standard deviation of the logarithm between launches.
        stored: launches of the baseline.
        new: launches of this run; at least three in all.
        alpha: one-sided error rate.
        power: share of the slowdowns of this size that are found.
        drift: see :func:`noise_limit`.
        tolerance: what is accepted anyway, as a fraction.
    """
    noise = noise_limit(sigma, stored, new, alpha, drift=drift)
    limit = math.log1p(tolerance)
    scatter = sigma**2 * (1 / stored + 1 / new)
    if noise > limit:
        limit = noise
        scatter += noise**2 / (2 * (stored + new - 2))
    return math.expm1(min(limit + normal_quantile(power) * math.sqrt(scatter), LARGEST_EXPONENT))


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Between which two of them the true median lies, in at least nine of ten samples; None: they are too few.

    By signs: nothing is assumed about how they scatter, but that they are independent.
    """
    ordered, outside, inner = sorted(values), 0.5 ** len(values), 0
    if 2 * outside > 1 - MEDIAN_CONFIDENCE:
        return None
    while True:
        outside += math.comb(len(ordered), inner + 1) * 0.5 ** len(ordered)
        if 2 * outside > 1 - MEDIAN_CONFIDENCE:
            return ordered[inner], ordered[-1 - inner]
        inner += 1


LEAST_RUNS = 5
"""Fewer on one side of a change tell no level."""

PRICE = 4.0
"""Of a further segment, times the logarithm of the number of runs, in variances of the noise."""

ERROR_RATE = 1e-3
"""That a series without a change is said to have one, for all its runs together."""

LEAST_CHANGE = 0.01
"""Smaller changes are not worth a line, as a fraction."""

_MOST_EXACT = 60
"""Of more numbers the exact distribution of the rank sum takes long, and the normal one is as good."""

_TO_STDEV = 1.4826 / math.sqrt(2)
"""Times the median absolute difference of neighbours gives the standard deviation of normal noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """A change for good.

    Attributes:
        index: of the first run on the new level.
    """

    index: int
    before: float
    after: float

    @property
    def ratio(self) -> float:
        return self.after / self.before


def change_points(values: Sequence[float]) -> list[ChangePoint]:
    """Where the level of a metric changed, oldest first; of values that are not all above 0 nothing is said.

    Logarithms are segmented, and the rank-sum test of Mann and Whitney checks each change, at one error rate for all.
    """
    if len(values) < 2 * LEAST_RUNS or not all(value > 0 for value in values):
        return []
    logs = [math.log(value) for value in values]
    ends = _certain(logs, _segmented(logs))
    levels = [statistics.median(values[begin:end]) for begin, end in zip([0, *ends], [*ends, len(values)], strict=True)]
    found = [
        ChangePoint(index=index, before=before, after=after)
        for index, before, after in zip(ends, levels, levels[1:], strict=False)
    ]
    return [change for change in found if abs(math.log(change.ratio)) >= math.log1p(LEAST_CHANGE)]


def _segmented(logs: Sequence[float]) -> list[int]:
    try:
        import ruptures
    except ImportError:
        raise ConfigurationError(
            "change points need ruptures, which is not installed: pip install 'pytest-distbench[history]'"
        ) from None
    import numpy

    middles = [statistics.median(logs[i - 1 : i + 2]) for i in range(1, len(logs) - 1)]
    smooth = numpy.array([logs[0], *middles, logs[-1]])
    steps = [later - earlier for earlier, later in itertools.pairwise(logs)]
    noise = _TO_STDEV * statistics.median(abs(step) for step in steps) or LEAST_CHANGE  # exact numbers have none
    search = ruptures.KernelCPD(kernel="linear", min_size=LEAST_RUNS).fit((smooth / noise).reshape(-1, 1))
    return [int(end) for end in search.predict(pen=PRICE * math.log(len(logs)))[:-1]]


def fewest_runs() -> int:
    """Of fewer runs no change can be told, even of levels that do not overlap: chance alone parts so few so well."""
    return next(n for n in itertools.count(2 * LEAST_RUNS) if 2 / math.comb(n, n // 2) <= ERROR_RATE / n)


def _certain(logs: Sequence[float], begins: list[int]) -> list[int]:
    from scipy.stats import mannwhitneyu

    def chance(before: Sequence[float], after: Sequence[float]) -> float:
        """That numbers of one level are parted as these are; exact where they are few and all differ."""
        both = [*before, *after]
        is_exact = len(both) <= _MOST_EXACT and len(set(both)) == len(both)
        return float(mannwhitneyu(before, after, method="exact" if is_exact else "asymptotic").pvalue)

    begins = list(begins)
    while begins:
        edges = [0, *begins, len(logs)]
        chances = [
            chance(logs[begin:middle], logs[middle:end])
            for begin, middle, end in zip(edges, edges[1:], edges[2:], strict=False)
        ]
        if max(chances) <= ERROR_RATE / len(logs):
            break
        del begins[chances.index(max(chances))]
    return begins
