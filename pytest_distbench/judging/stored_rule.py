"""The decision rule for noisy metrics: is the new side slower than the stored one? Pure, no I/O.

One launch is one sample. What is judged of it is its *fast side*: the geometric mean of the fastest iteration and the
25th percentile of the maximum over ranks; of a metric without iterations, its value. On logarithms, with "worse"
positive, and ``s`` the standard deviation between launches, pooled over stored and new ones but no less than what is
typical for the sibling metrics of the case (ten launches may look quiet by luck):

1. ``d`` = mean of the new launches - mean of the stored ones.
2. The *limit* is the larger of the user's tolerance and what the noise allows for the most launches there may be:
   ``t(1 - alpha) * s * sqrt(1/stored + 1/most + drift)``. ``alpha`` is the run's error rate divided by its
   comparisons, at most 0.1 %. ``drift`` is there because launches of one stretch of time agree better with each other
   than with those of another; no number of launches averages that out.
3. *First stage.* While ``d`` is two standard errors below the limit, ``limit - 2 s sqrt(1/stored + 1/new)``, a change
   as large as the limit would have shown: no further launch is needed. Otherwise, or when better than the limit, the
   answer is open, and another launch is asked for, up to the most.
4. *Second stage.* A machine that became busy is slower too, but that also stretches the slow side of a launch, which
   slower code moves by the same factor as the fast side. So what ``log(p95 / p25)`` grew by, beyond half its standard
   error, is taken off ``d``, though half of ``d`` at most. What remains must exceed the limit, *and* the order of the
   launches must confirm it: in 95 % of all pairs of a new and a stored launch the new one is worse. Then the metric
   *regressed*. Twice the limit and every pair settle it after three launches already.
5. The same in the other direction: *improved*. Otherwise ``d`` within the tolerance, or within two standard errors, is
   *unchanged*, and all else is *inconclusive*, with the smallest slowdown that would have been found nine times in ten.
   So is a comparison whose noise hides a doubling.

How often the rule errs, and what it finds, is in docs/dev/benchmarks.md; benchmarks/verdict_rules.py measures it.

The fast side is quiet because it leaves out what is slow, and so it does not see that most iterations became slow.
Beside it stands the geometric mean of all iterations, the quietest number that each of them moves: of the mean, the
median and trimmed means none scatters less between recorded launches. Other processes move it more than the fast side:

- a screening looks into it from :data:`LEAST_OF_ALL` on, and launches in turns are judged by it at that tolerance,
  where the fast side does not call a clock slower;
- stored numbers alone make it *regressed* where it has more than doubled (:data:`BEYOND_DOUBT`), as no recorded change
  of load did, and by more than its noise allows.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pytest_distbench.judging.stats import (
    BLIND_LIMIT,
    detectable_slowdown,
    noise_limit,
    pooled_stdev,
    worse_pairs,
)
from pytest_distbench.judging.terms import Draft
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample, metric_name
from pytest_distbench.records.reasons import REASONS, ReasonCode, VerdictName
from pytest_distbench.records.record import replace
from pytest_distbench.units import format_change

DRIFT = 0.4
"""Variance between the baseline's stretch of time and today's, in units of the variance between launches of one
stretch. Chosen so that changing load raises few false alarms (benchmarks/verdict_rules.py)."""

STANDARD_ERRORS = 2.0
"""What lies this far below the limit needs no further launch; what lies this close to no change is none."""

CONFIRMING_PAIRS = 0.95
"""Share of the pairs of a new and a stored launch that must be worse: a Mann-Whitney test, said in words."""

LOAD_ERRORS = 0.5
"""Standard errors by which the stretch of a launch may grow before that is put down to load."""

LOAD_SHARE = 0.5
"""No more of a slowdown is put down to load: a doubling is a doubling, however it is spread."""

OBVIOUS_LAUNCHES, OBVIOUS_LIMITS = 3, 2.0
"""After this many launches a change of this many limits needs no more."""

LAST_DIGIT = 5e-4
"""What four stored digits hide: half a unit of the last one, of a number that begins with 1."""

FEWEST_SIBLINGS = 5
"""Fewer metrics of one name do not say what noise is typical."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the rule says; ``is_open``: one more launch could change it."""

    code: ReasonCode
    reason: str = ""
    is_open: bool = False

    @property
    def kind(self) -> VerdictName:
        return REASONS[self.code].verdict


@dataclass(frozen=True, slots=True)
class Side:
    """What is judged of some launches, as logarithms.

    Attributes:
        stretch: ``log(p95 / p25)`` of each; 0 where there are no iterations.
    """

    fast: list[float]
    stretch: list[float]

    @classmethod
    def of(cls, launches: Iterable[tuple[float, float, float]]) -> Side:
        """From value (p25), minimum and p95 of each launch."""
        known = list(launches)
        return cls(
            fast=[(math.log(value) + math.log(low)) / 2 for value, low, _ in known],
            stretch=[math.log(high / value) for value, _, high in known],
        )

    @classmethod
    def of_samples(cls, launches: Iterable[Sample], *, timed: bool) -> Side:
        """Of the launches that have a value.

        Args:
            timed: by their iterations, which all of them have, see :func:`are_timed`; else by their values.
        """
        rows = [(m.value, m.spread if timed else None) for m in launches if m.value is not None]
        return cls.of((value, s.minimum, s.p95) if s is not None else (value, value, value) for value, s in rows)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both sides of a metric, and what their noise allows. Differences are of logarithms, towards worse positive.

    Attributes:
        old: the stored launches, at least two.
        new: the launches of this run, at least one.
        sign: 1 where a larger number is worse, else -1.
        wanted: the user's tolerance, or what the stored digits hide.
        noise: what the noise allows with the most launches.
        mde: smallest slowdown found with 90 % power, as a fraction.
    """

    old: Side
    new: Side
    sign: float
    most: int
    sigma: float
    wanted: float
    noise: float
    mde: float

    @classmethod
    def of(
        cls,
        current: Sequence[Sample],
        baseline: Sequence[Sample],
        *,
        tolerance: float,
        alpha: float,
        most: int,
        noise_floor: float,
        drift: float = DRIFT,
    ) -> Comparison:
        """From records whose values are positive, at least two of them stored; launches without one do not count."""
        timed = are_timed(baseline) and are_timed(current)
        old, new = (Side.of_samples(side, timed=timed) for side in (baseline, current))
        sigma = max(pooled_stdev(old.fast, new.fast), noise_floor)
        stored, most = len(old.fast), max(most, len(new.fast))
        return cls(
            old=old,
            new=new,
            sign=METRIC_KINDS[baseline[0].better].sign,
            most=most,
            sigma=sigma,
            wanted=max(math.log1p(tolerance), LAST_DIGIT),
            noise=noise_limit(sigma, stored, most, alpha, drift=drift),
            mde=detectable_slowdown(sigma, stored, most, alpha, drift=drift, tolerance=tolerance),
        )

    @property
    def worse_by(self) -> float:
        """``d``."""
        return self.sign * (statistics.fmean(self.new.fast) - statistics.fmean(self.old.fast))

    @property
    def limit(self) -> float:
        return max(self.wanted, self.noise)

    @property
    def answer(self) -> Answer:
        is_last = len(self.new.fast) >= self.most
        if is_last or len(self.new.fast) >= OBVIOUS_LAUNCHES:
            limits, pairs = (1.0, CONFIRMING_PAIRS) if is_last else (OBVIOUS_LIMITS, 1.0)
            if self._is_clear(1.0, limits, pairs):
                return Answer("beyond-threshold")
            if self._is_clear(-1.0, limits, pairs):
                return Answer("better")
        near = max(0.0, self.limit - STANDARD_ERRORS * self._error)
        if not is_last and (self.worse_by > near or self.worse_by < -self.limit):
            return Answer("launches-used-up", "more launches are needed", is_open=True)
        if self.noise > max(self.wanted, math.log1p(BLIND_LIMIT)):
            return self._too_noisy
        if self.worse_by <= max(self.wanted, STANDARD_ERRORS * self._error):
            return Answer("within-threshold")
        if self.worse_by > self.limit >= self._unexplained_change(1.0):
            return Answer("machine-busy", "slower, but mostly in its slowest iterations, as on a busy machine")
        return self._too_noisy

    @property
    def _error(self) -> float:
        """Of ``d``, by the noise between launches alone."""
        return self.sigma * math.sqrt(1 / len(self.old.fast) + 1 / len(self.new.fast))

    def _unexplained_change(self, direction: float) -> float:
        """The change towards worse (1) or better (-1), less what a change of load explains."""
        change = direction * self.worse_by
        old, new = self.old.stretch, self.new.stretch
        error = LOAD_ERRORS * statistics.stdev(old) * math.sqrt(1 / len(old) + 1 / len(new))
        stretched = direction * (statistics.fmean(new) - statistics.fmean(old)) - error
        return change - min(max(0.0, stretched), max(0.0, LOAD_SHARE * change))

    def _is_clear(self, direction: float, limits: float, pairs: float) -> bool:
        confirming = worse_pairs(self.old.fast, self.new.fast, direction * self.sign)
        return self._unexplained_change(direction) > limits * self.limit and confirming >= pairs

    @property
    def _too_noisy(self) -> Answer:
        size = f"+{self.mde:.0%}" if self.mde <= BLIND_LIMIT else "more than a doubling"
        return Answer("noise", f"too noisy; minimum detectable slowdown {size}")


def draft_of(current: Sequence[Sample], baseline: Sequence[Sample]) -> Draft:
    """What is judged of a noisy metric, by its iterations where both sides have them; its values where one is 0."""
    stored = [m.value for m in baseline]
    draft = Draft(current[0], [m.value for m in current], stored)
    known = [m for m in current if m.value is not None]
    values = [v for v in (*draft.current, *stored) if v is not None]
    if not current[0].is_noisy or min(values, default=0) <= 0:
        return draft
    if not are_timed(known) or not are_timed(baseline):
        return dataclasses.replace(draft, statistic="geometric mean")
    now, then = (list(map(fast_value, side)) for side in (current, baseline))
    return Draft(current[0], now, then, "sqrt(min x p25)")


def fast_value(launch: Sample) -> float | None:
    """What is judged of a launch: sqrt(minimum x p25) of the iterations of a timing, the value of anything else."""
    if launch.value is None or launch.spread is None or launch.value <= 0 or not are_timed([launch]):
        return launch.value
    return math.sqrt(launch.value) * math.sqrt(launch.spread.minimum)


def are_timed(launches: Sequence[Sample]) -> bool:
    """Whether all of them have a fast side, and say how their iterations were spread."""
    return all(METRIC_KINDS[m.better].has_fast_side and m.spread is not None and m.spread.minimum > 0 for m in launches)


def variance_of_iterations(measurement: Sample) -> float | None:
    """Variance of the logarithm of a launch's 25th percentile that comes from timing only so many iterations.

    The asymptotic variance of a sample quantile, ``q (1 - q) / (n f^2)``, with the density ``f`` taken from the quarter
    of the iterations between it and the median. Iterations depend on each other, so the true one is rather larger.
    None where no series was timed.
    """
    spread = measurement.spread
    if spread is None or not METRIC_KINDS[measurement.better].has_fast_side or spread.p25 <= 0 or spread.n < 2:
        return None
    density = 0.25 / max(spread.median - spread.p25, 1e-12 * spread.p25)
    return float(0.25 * 0.75 / (spread.n * density**2 * spread.p25**2))


def typical_noise(metrics: Mapping[str, Sequence[Sample]]) -> dict[str, float]:
    """The median noise of sibling metrics, by their common name: ``latency`` of a sweep over sizes.

    The standard deviation of ten launches is itself uncertain by a quarter, and launches taken in one stretch agree
    too well. Points of one sweep run on the same machine at the same time, so none is believed to be much quieter than
    half of them. Names with fewer than :data:`FEWEST_SIBLINGS` metrics have no typical noise.
    """
    noise = {}
    for key, metric in metrics.items():
        known = [m.value for m in metric if m.value is not None]
        if metric[0].is_noisy and len(known) >= 2 and min(known) > 0:
            noise[key] = statistics.stdev(Side.of_samples(metric, timed=are_timed(metric)).fast)
    return typical_of_siblings(noise)


def typical_of_siblings(noise: Mapping[str, float]) -> dict[str, float]:
    """Name without point -> median noise of its metrics; from the noise by key, see :func:`typical_noise`."""
    found: dict[str, list[float]] = {}
    for key, sigma in noise.items():
        found.setdefault(metric_name(key), []).append(sigma)
    return {name: statistics.median(known) for name, known in found.items() if len(known) >= FEWEST_SIBLINGS}


LEAST_OF_ALL = 0.25
"""The smallest change of all iterations that counts."""

BEYOND_DOUBT = 1.0
"""The same by stored numbers alone."""

CAUTION = 5
"""In turns it has so small a part of the error rate of the fast side: it is asked where that one says no."""

FEWEST_STORED = 5
"""Launches: of fewer nobody knows how much all of their iterations differ."""


def whole(measurement: Sample) -> float | None:
    """The geometric mean of a launch's series; None where there is none, or no series of times or rates."""
    return measurement.spread.geometric_mean if measurement.spread is not None else None


class Wholes(NamedTuple):
    """Logarithms of all iterations, of stored launches and of new ones."""

    old: list[float]
    new: list[float]
    sign: float

    @classmethod
    def of(cls, current: Sequence[Sample], stored: Sequence[Sample]) -> Wholes | None:
        """Of one metric; None where one side does not know it."""
        then, now = ([w for w in map(whole, side) if w is not None] for side in (stored, current))
        if len(then) < max(FEWEST_STORED, len(stored)) or not now or len(now) < len(current):
            return None
        return cls([math.log(w) for w in then], [math.log(w) for w in now], METRIC_KINDS[stored[0].better].sign)

    @property
    def worse_by(self) -> float:
        return self.sign * (statistics.fmean(self.new) - statistics.fmean(self.old))

    def limit(self, *, tolerance: float, alpha: float, most: int, drift: float) -> float:
        """What stored numbers alone do not call slower."""
        noise = noise_limit(
            pooled_stdev(self.old, self.new), len(self.old), max(most, len(self.new)), alpha, drift=drift
        )
        return max(math.log1p(max(tolerance, BEYOND_DOUBT)), noise)

    def is_beyond(self, limit: float, *, most: int) -> bool | None:
        """Whether stored numbers alone say that it is slower; None: one more launch would tell."""
        if self.worse_by <= limit:
            return False
        pairs = worse_pairs(self.old, self.new, self.sign)
        if len(self.new) >= most:
            return pairs >= CONFIRMING_PAIRS
        is_obvious = self.worse_by > OBVIOUS_LIMITS * limit and pairs == 1.0
        return True if is_obvious and len(self.new) >= OBVIOUS_LAUNCHES else None

    def draft(self, metric: Sample) -> Draft:
        now, then = ([math.exp(log) for log in side] for side in (self.new, self.old))
        return Draft(metric, now, then, "all iterations")

    @property
    def told(self) -> str:
        return f"{format_change(math.exp(self.sign * self.worse_by))} by the geometric mean of all iterations"


def by_whole(launch: LaunchRecord) -> LaunchRecord:
    """A launch with nothing but what has iterations, whose values are of all of them."""
    found = [(m, whole(m)) for m in launch.measurements]
    return replace(launch, measurements=[replace(m, value=w, spread=None) for m, w in found if w is not None])
