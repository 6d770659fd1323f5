"""How much worse one side of a noisy metric is, and every threshold that it is compared with. Pure, no I/O.

One launch is one sample. What is judged of it is its *lower quantile*: the geometric mean of the fastest iteration and
the 25th percentile of the maximum over ranks; for a metric without iterations, its value. Differences are of
logarithms, with "worse" positive.

**Stored launches.** ``s`` is the standard deviation between launches, pooled over stored and new ones but no less than
what is typical for the sibling metrics of the case (ten launches may look quiet by luck):

1. ``d`` = mean of the new launches - mean of the stored ones.
2. The *limit* is the larger of the user's tolerance and what the noise allows for the most launches there may be:
   ``t(1 - alpha) * s * sqrt(1/stored + 1/most + shift)``. ``alpha`` is the run's error rate divided by its
   comparisons, at most 0.1 %. ``shift`` is there because launches of one stretch of time agree better with each other
   than with those of another; no number of launches averages that out.
3. *First stage.* While ``d`` is two standard errors below the limit, ``limit - 2 s sqrt(1/stored + 1/new)``, a change
   as large as the limit would be visible: no further launch is needed. Otherwise, or when better than the limit, the
   answer is open, and another launch is asked for, up to the most.
4. *Second stage.* A machine that became busy is slower too, but that also stretches the slow tail of a launch, which
   slower code changes by the same factor as the lower quantile. So what ``log(p95 / p25)`` grew by, beyond half its
   standard error, is subtracted from ``d``, though half of ``d`` at most. The rest must exceed the limit, *and* the
   order of the launches must confirm it: in 95 % of all pairs of a new and a stored launch the new one is worse. Then
   the metric *regressed*. Twice the limit and every pair decide it after three launches already.
5. The same in the other direction: *improved*. Otherwise ``d`` within the tolerance, or within two standard errors, is
   *unchanged*, and all else is *inconclusive*, with the MDE, the smallest slowdown that is found nine times in ten. So
   is a comparison whose noise hides a doubling.

**Pairs of launches** of two revisions, interleaved: a pair is one sample, ``d`` the logarithm of the candidate's value
over the other's. What slows the machine slows both, and cancels. Judged after 5, 7, 10, 14, 20 and 28 pairs
(:func:`looks`):

1. The limit is the larger of the tolerance and what the noise allows, ``t(1 - alpha, n - 1) * s / sqrt(n)``;
   ``alpha`` is the run's error rate divided by its comparisons, and shared over the looks, the later the more.
2. Mean of ``d`` over the limit: *regressed*; below minus the limit: *improved*. Both end the question.
3. The upper 95 % bound of ``d`` below the tolerance: *unchanged*: a slowdown of that size is ruled out.
4. A timing that is not slower by this *regressed* too if its CPU time is, by its own noise, and if the
   timing and the added CPU time per rank both exceed half of the tolerance.
5. Otherwise more pairs; at the last look *inconclusive*.

docs/dev/benchmarks.md has the rules' error rates and power, which benchmarks/verdict_rules.py measures.

The lower quantile is quiet because it leaves out what is slow, and so it does not show that most iterations became
slow. The geometric mean of all iterations does, as the quietest number that each of them changes: of the mean, the
median and trimmed means none scatters less between recorded launches. Other processes change it more than the lower
quantile:

- a screening uses it from :data:`LEAST_OF_ALL` on, and interleaved launches are judged by it at that tolerance,
  if the lower quantile does not call a timing slower;
- stored numbers alone make it *regressed* if it has more than doubled (:data:`LEAST_BY_STORED`), as no recorded change
  of load did, and by more than its noise allows.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pytest_distbench.judging.stats import (
    BASELINE_ERROR_RATE,
    noise_limit,
    pooled_stdev,
    shared_error_rate,
    smallest_detectable,
    student_t_quantile,
)
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.metric import Sample, metric_name
from pytest_distbench.records.record import replace
from pytest_distbench.units import is_size

SHIFT = 0.4
"""Variance between the baseline's stretch of time and today's, in units of the variance between launches of one
stretch. Chosen so that changing load raises few false alarms (benchmarks/verdict_rules.py)."""

STANDARD_ERRORS = 2.0
"""A difference this far below the limit needs no further launch; one this close to 0 is no change."""

CONFIRMING_PAIRS = 0.95
"""Share of the pairs of a new and a stored launch that must be worse: a Mann-Whitney test in words."""

LOAD_ERRORS = 0.5  # standard errors by which the slow tail of a launch may grow before that is attributed to load

LOAD_SHARE = 0.5  # largest share of a slowdown that is attributed to load: a doubling is a doubling

OBVIOUS_LAUNCHES, OBVIOUS_LIMITS = 3, 2.0  # after this many launches a change of this many limits needs no more

LAST_DIGIT = 5e-4  # what four stored digits hide: half a unit of the last one, for a number that begins with 1

FEWEST_SIBLINGS = 5  # fewer metrics of one name do not show what noise is typical

LEAST_OF_ALL = 0.25  # the smallest change of all iterations that counts

LEAST_BY_STORED = 1.0  # the same by stored numbers alone

CAUTION = 5  # divisor of the error rate if all iterations are judged, because the lower quantile is judged before

FEWEST_STORED = 5  # launches: fewer do not show how much all of their iterations differ

FIRST_LOOK, LAST_LOOK = 5, 28  # pairs

FEWEST_PAIRS = 3  # with fewer the noise between pairs is unknown

VETO = 2.0  # a slowdown counts only if it is more than this many times the A/A noise

CONFIDENCE = 0.95
POWER = 0.9

ONE_AGAINST_TWO = 1.5
"""Variance of the difference between one launch and the mean of two others, in units of a launch's ``s^2``."""
_TWICE_OVER_MEAN = 2 / ONE_AGAINST_TWO  # that of two launches is ``2 s^2``

_STEPS = 60
_HALVINGS = 18
_BEYOND = 20.0  # as a logarithm
_WIDEST = 4.0  # sample standard deviations beyond four times the true one do not happen

BUSIER_SHARE = 0.15
"""A machine is *busier than the baseline's* if other processes use this share of its cores more, or take this share of
the ranks' time on them."""
WAITS = 2.0
"""Work takes as many times longer as its threads wait for a CPU, or as there are fewer cores left for it; if ranks wait
for each other, and share caches with others, by this factor more at most. A choice, and a wide one: a larger change is
the code's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What a finding depends on besides the samples.

    Attributes:
        tolerance: accepted change of this metric towards worse, as a fraction: 0.1 is 10 %.
        comparisons: noisy comparisons in this run; the error rate is shared over them.
        whole_comparisons: comparisons of triples by all of their iterations.
        max_launches: the most there may be of this run.
        looks: numbers of pairs at which a decision is made, ascending; empty for a comparison with stored launches.
        spending: a look's share of the error rate grows with this power of its pairs: the noise of five pairs looks
            small by luck too easily for the first look to have an equal share.
        noise_floor: standard deviation of the logarithm that is typical for this metric's siblings, see
            :func:`typical_noise`.
        same_software: whether both sides ran the same software on the same device model.
        busier_cores: how many more cores other processes used now than when the baseline was taken.
        crowding: how many times as long the ranks' work takes because others want their CPUs, over what it was then;
            None if unknown, now or then: ``busier_cores`` decides.
        disturbance: why a slowdown may be the GPU's and not the code's, in a clause, or "".
        share: share of a comparison's error rate that this metric may spend, see ``judging/screening.py``.
        shift: reserve for an environment shift between the baseline and this run, see :data:`SHIFT`.
    """

    tolerance: float
    comparisons: int
    whole_comparisons: int = 1
    max_launches: int = 1
    looks: tuple[int, ...] = ()
    spending: int = 2
    noise_floor: float = 0.0
    same_software: bool = True
    busier_cores: float = 0.0
    crowding: float | None = None
    cores: int = 1
    disturbance: str = ""
    share: float = 1.0
    shift: float = SHIFT

    @property
    def most(self) -> int:
        return self.looks[-1] if self.looks else self.max_launches

    @property
    def alpha(self) -> float:
        """One-sided error rate of a comparison with stored launches."""
        return min(BASELINE_ERROR_RATE, shared_error_rate(self.comparisons)) * self.share

    def alpha_of(self, pairs: int) -> float:
        """One-sided error rate of the look after so many pairs."""
        spent = math.pow(pairs, self.spending) / sum(math.pow(n, self.spending) for n in self.looks)
        return shared_error_rate(self.comparisons) * self.share * spent

    @property
    def explained_by_others(self) -> float:
        """The slowdown, as logarithm of a ratio, that other processes may have caused; 0 if none."""
        if self.busier_cores <= BUSIER_SHARE * self.cores and not self._is_crowded:
            return 0.0
        if self.crowding is not None:
            return math.log(WAITS * max(1.0, self.crowding))
        left = 1.0 - self.busier_cores / self.cores
        return math.log(WAITS / left) if left > 0.0 else math.inf

    @property
    def _is_crowded(self) -> bool:
        return self.crowding is not None and self.crowding > 1.0 / (1.0 - BUSIER_SHARE)

    @property
    def others(self) -> str:
        if self._is_crowded:
            return (
                "ranks waited for CPUs that other processes used: their work took "
                f"{self.crowding:.1f} times as long as when the baseline was recorded"
            )
        return f"other processes used {self.busier_cores:.1f} cores more than when the baseline was recorded"

    def excuse(self, unit: str, worse_by: float) -> tuple[str, str]:
        """Code and clause if the machine may explain a slowdown; the code is "" if it does not explain all of it."""
        if is_size(unit):
            return "", ""
        held_back = ("gpu-throttled", f"slower, but {self.disturbance}") if self.disturbance else None
        if self.explained_by_others == 0.0:
            return held_back or ("", "")
        if math.isinf(self.explained_by_others):
            return "machine-busy", f"slower, but {self.others}, which explains any slowdown"
        explained = f"{self.others}, which explains up to {math.exp(self.explained_by_others):.1f} times as slow"
        if worse_by < self.explained_by_others:
            return "machine-busy", f"slower, but {explained}"
        return held_back or ("", f"{explained}; the slowdown is larger")


class Difference(NamedTuple):
    """Difference of two sides of a metric, as logarithms, positive if the candidate is worse; and its thresholds.

    Attributes:
        error: standard error of the difference, by the noise between launches alone.
        wanted: the user's tolerance, or what the stored digits hide.
        limit: threshold: the larger of ``wanted`` and of what the noise allows.
        mde: smallest slowdown found with 90 % power, as a fraction.
    """

    worse_by: float
    error: float
    wanted: float
    limit: float
    mde: float


def of_stored(old: Sequence[float], new: Sequence[float], under: Circumstances, sign: float) -> Difference:
    """Difference of new launches from stored ones, at least two; logarithms. ``sign`` is 1 if larger is worse."""
    sigma = max(pooled_stdev(old, new), under.noise_floor)
    stored, most, tolerance, shift = len(old), max(under.most, len(new)), under.tolerance, under.shift
    wanted = max(math.log1p(tolerance), LAST_DIGIT)
    return Difference(
        worse_by=sign * (statistics.fmean(new) - statistics.fmean(old)),
        error=sigma * math.sqrt(1 / stored + 1 / len(new)),
        wanted=wanted,
        limit=max(wanted, noise_limit(sigma, stored, most, under.alpha, shift=shift)),
        mde=smallest_detectable(sigma, stored, most, under.alpha, shift=shift, tolerance=tolerance),
    )


def of_pairs(worse_by: Sequence[float], null: Sequence[float], under: Circumstances) -> Difference:
    """Mean difference over interleaved pairs of launches, with its thresholds.

    Args:
        worse_by: the candidate's logarithm less the other side's, in each pair; positive towards worse.
        null: difference of the other side's two launches in each triple, else empty: its mean is 0, its variance 4/3.
    """
    n, df = len(worse_by), len(worse_by) - 1 + len(null)
    mean = statistics.fmean(worse_by)
    sigma = math.sqrt((sum((d - mean) ** 2 for d in worse_by) + sum(d**2 for d in null) / _TWICE_OVER_MEAN) / df)
    error, wanted = sigma / math.sqrt(n), math.log1p(under.tolerance)
    limit = max(wanted, student_t_quantile(1 - under.alpha_of(n), df) * error)
    return Difference(mean, error, wanted, limit, smallest_slowdown(sigma, under))


def noise_of_means(old: Sequence[float], new: Sequence[float], under: Circumstances) -> float:
    """The largest difference between the means of both sides that chance explains, in their unit."""
    if not under.looks:
        return noise_limit(pooled_stdev(old, new), len(old), max(under.most, len(new)), under.alpha, shift=under.shift)
    scatter = statistics.stdev(b - a for a, b in zip(old, new, strict=True))
    return student_t_quantile(1 - under.alpha_of(len(new)), len(new) - 1) * scatter / math.sqrt(len(new))


def looks(first: int, most: int) -> tuple[int, ...]:
    """Numbers of pairs at which a decision is made: the first, and two fifths more each time, up to the most."""
    found = [max(first, FEWEST_PAIRS)]
    while found[-1] < most:
        found.append(min(math.ceil(found[-1] * 7 / 5), most))
    return tuple(found)


LOOKS = looks(FEWEST_PAIRS, LAST_LOOK)  # pairs at which interleaved launches are judged that confirm a suspicion

SPENDING = 1
"""``Circumstances.spending`` for triples: with two differences each, three of them show their noise well enough."""


def power(slowdown: float, sigma: float, under: Circumstances) -> float:
    """Chance that a true slowdown, as a fraction, is called a regression at the last look.

    The mean of n normal differences has to exceed ``max(log(1 + tolerance), t s / sqrt(n))``, where the sample's ``s``
    is itself random: integrated over its distribution (chi with n - 1 degrees of freedom).
    """
    n = under.looks[-1]
    df = n - 1
    error = sigma / math.sqrt(n)
    shift, least = math.log1p(slowdown), math.log1p(under.tolerance)
    if error == 0:
        return float(shift > least)
    critical = student_t_quantile(1 - under.alpha_of(n), df)
    normal = statistics.NormalDist()
    return sum(
        weight * normal.cdf((shift - max(least, critical * u * error)) / error) for u, weight in _sample_stdevs(df)
    )


def smallest_slowdown(sigma: float, under: Circumstances) -> float:
    """Smallest slowdown, as a fraction, whose :func:`power` is :data:`POWER`; inf if it is beyond measure."""
    error = sigma / math.sqrt(under.looks[-1])
    critical = student_t_quantile(1 - under.alpha_of(under.looks[-1]), under.looks[-1] - 1)
    low = math.log1p(under.tolerance)
    high = low + (_WIDEST * critical + _WIDEST) * error
    if high > _BEYOND:
        return math.inf
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if power(math.expm1(middle), sigma, under) < POWER:
            low = middle
        else:
            high = middle
    return math.expm1(high)


@functools.cache
def _sample_stdevs(df: int) -> list[tuple[float, float]]:
    points = [(i + 0.5) * _WIDEST / _STEPS for i in range(_STEPS)]
    density = [math.exp((df - 1) * math.log(u) - df * (u * u - 1) / 2) for u in points]
    return [(u, d / sum(density)) for u, d in zip(points, density, strict=True)]


def fast_value(launch: Sample) -> float | None:
    """What is judged of a launch: sqrt(minimum x p25) of the iterations of a timing, the value of anything else."""
    if launch.value is None or launch.spread is None or launch.value <= 0 or not are_timed([launch]):
        return launch.value
    return math.sqrt(launch.value) * math.sqrt(launch.spread.minimum)


def are_timed(launches: Sequence[Sample]) -> bool:
    """Whether every launch's value is a lower quantile of iterations whose spread is known."""
    return all(METRIC_KINDS[m.better].has_fast_side and m.spread is not None and m.spread.minimum > 0 for m in launches)


def fast_logs(launches: Sequence[Sample], *, timed: bool | None = None) -> list[float]:
    """Logarithms of what is judged of the launches that have a value.

    Args:
        timed: whether to use iterations, which all launches must have, or their values; by default iterations if known.
    """
    timed = are_timed(launches) if timed is None else timed
    rows = [(m.value, m.spread if timed else None) for m in launches if m.value is not None]
    return [(math.log(value) + math.log(value if s is None else s.minimum)) / 2 for value, s in rows]


def stretches(launches: Sequence[Sample]) -> list[float]:
    """How far the slow iterations of each launch lie above the fast ones: ``log(p95 / p25)``."""
    return [math.log(m.spread.p95 / m.value) for m in launches if m.value is not None and m.spread is not None]


def variance_of_iterations(measurement: Sample) -> float | None:
    """Variance of the logarithm of a launch's 25th percentile that comes from timing only so many iterations.

    The asymptotic variance of a sample quantile, ``q (1 - q) / (n f^2)``, with the density ``f`` taken from the quarter
    of the iterations between it and the median. Iterations depend on each other, so the true one is rather larger. None
    without a timed series.
    """
    spread = measurement.spread
    if spread is None or not METRIC_KINDS[measurement.better].has_fast_side or spread.p25 <= 0 or spread.n < 2:
        return None
    density = 0.25 / max(spread.median - spread.p25, 1e-12 * spread.p25)
    return float(0.25 * 0.75 / (spread.n * density**2 * spread.p25**2))


def noise_of(launches: Sequence[Sample]) -> float | None:
    """Standard deviation of the logarithm between launches; None for fewer than two, or values up to 0."""
    known = [m.value for m in launches if m.value is not None]
    return statistics.stdev(fast_logs(launches)) if len(known) > 1 and min(known) > 0 else None


def typical_noise(metrics: Mapping[str, Sequence[Sample]]) -> dict[str, float]:
    """The median noise of sibling metrics, by their common name: ``latency`` of a sweep over sizes.

    The standard deviation of ten launches is itself uncertain by a quarter, and launches taken in one stretch agree too
    well. Points of one sweep run on the same machine at the same time, so none is believed to be much quieter than half
    of them. Names with fewer than :data:`FEWEST_SIBLINGS` metrics have no typical noise.
    """
    noise = {key: noise_of(metric) for key, metric in metrics.items() if metric[0].is_noisy}
    return typical_of_siblings({key: sigma for key, sigma in noise.items() if sigma is not None})


def typical_of_siblings(noise: Mapping[str, float]) -> dict[str, float]:
    """Name without point -> median noise of its metrics; from the noise by key, see :func:`typical_noise`."""
    found: dict[str, list[float]] = {}
    for key, sigma in noise.items():
        found.setdefault(metric_name(key), []).append(sigma)
    return {name: statistics.median(known) for name, known in found.items() if len(known) >= FEWEST_SIBLINGS}


def whole(measurement: Sample) -> float | None:
    """The geometric mean of a launch's series, or None without a series of times or rates."""
    return measurement.spread.geometric_mean if measurement.spread is not None else None


def paid(measurement: Sample) -> float | None:
    """The mean of a launch's series without the slowest iteration; None as for :func:`whole`."""
    return measurement.spread.mean_but_slowest if measurement.spread is not None else None


Whole = Callable[[Sample], float | None]

WHOLES: tuple[Whole, ...] = (whole, paid)  # what stands for all iterations of a launch


def by_all_iterations(launch: Sample, of: Whole = whole) -> Sample | None:
    """A launch's sample whose value is a mean over all iterations, not the lower quantile; None if unknown."""
    value = of(launch)
    return None if value is None else replace(launch, value=value, spread=None)


def both_by_all_iterations(
    stored: Sequence[Sample], current: Sequence[Sample], of: Whole = whole
) -> tuple[list[Sample], list[Sample]] | None:
    """Both sides with a mean over all iterations as value; None if too few launches recorded their iterations."""
    then, now = ([m for m in (by_all_iterations(m, of) for m in side) if m is not None] for side in (stored, current))
    is_known = len(then) >= max(FEWEST_STORED, len(stored)) and len(now) == len(current) > 0
    return (then, now) if is_known else None
