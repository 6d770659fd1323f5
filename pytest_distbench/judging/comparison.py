"""One metric of both sides, stored or in pairs, and its deciders. Pure.

``thresholds`` has the differences and thresholds of stored launches and of pairs.

Numbers that do not depend on time (``exact``) are compared exactly while the software is the same. All others are
noisy. A regression that was measured while other processes kept the machine much busier than at the baseline is
*inconclusive*, unless it is larger than they can explain: a timing cannot distinguish the two.

Peak memory is no timing: no load of the machine changes it, and a launch of the same code needs what the last one
needed, but for what allocators round and caches keep. With the tolerance, or :data:`LEAST_BYTES`, whichever is more
(unless the test sets one, the tolerance is four standard deviations of the stored launches, 5 % at least; 20 % if
there are fewer than five):

- *regressed*: every launch, at least three if so many may be made, is above the largest stored one by more;
- *improved*: every launch is below the smallest stored one by more;
- else *unchanged*; *inconclusive* if more than half of the launches are above, and not all.

A rank that needs less than another counts too: the second largest is compared with the second largest, and so on. Ranks
may swap between launches, so none is compared with its own number.

Noisy values that are zero or negative have no logarithm: 4 GiB are no percentage more than 0 B. They are certainly more
if

1. every new value is worse than every old one, by more than the tolerance if a tolerance applies, and
2. the means differ by more than the noise allows, in the metric's own unit.

Then the metric *regressed*; the other way round it *improved*. All else is *inconclusive*, so that nothing becomes
green because it was zero once. A timer that reads 0 has timed nothing: that is no answer, and no baseline.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_distbench.judging.deciders import FIRST, RULES, Compared, Decider, decide
from pytest_distbench.judging.stats import BLIND_LIMIT, LARGEST_EXPONENT, student_t_quantile, worse_pairs
from pytest_distbench.judging.terms import (
    OF_FEW_SIZES,
    TOO_GOOD,
    difference,
    more_than_stored,
    most_of_ranks,
    why_nothing_was_timed,
)
from pytest_distbench.judging.thresholds import (
    CAUTION,
    CONFIDENCE,
    CONFIRMING_PAIRS,
    LEAST_BY_STORED,
    LEAST_OF_ALL,
    LOAD_ERRORS,
    LOAD_SHARE,
    OBVIOUS_LAUNCHES,
    OBVIOUS_LIMITS,
    STANDARD_ERRORS,
    VETO,
    WHOLES,
    Circumstances,
    Difference,
    Whole,
    are_timed,
    both_by_all_iterations,
    by_all_iterations,
    fast_logs,
    fast_value,
    noise_of_means,
    of_pairs,
    of_stored,
    paid,
    smallest_slowdown,
    stretches,
    whole,
)
from pytest_distbench.records.kinds import METRIC_KINDS, Better, geometric_mean, median
from pytest_distbench.records.metric import CPU_S, Sample
from pytest_distbench.records.reasons import REASONS, ReasonCode
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import Finding, Statistic
from pytest_distbench.units import (
    format_bytes,
    format_change,
    format_percent,
    format_values,
    is_size,
    quantity,
    why_impossible,
)

if TYPE_CHECKING:
    from pytest_distbench.judging.screening import Neighbours, Screening

LEAST_BYTES = 16 * 2**20
"""Smallest change that counts, whatever share it is: what a library loads or an allocator keeps for the next time."""

AGREEING_LAUNCHES = 3

MORE_LAUNCHES = "more launches are needed"
MARKEDLY = 1.5  # an iteration that takes this many times as long is slow
_SCATTER = 0.025  # standard deviation of pairs, as a logarithm, that hides small slowdowns
_BY_CPU: Statistic = "A/B CPU time"
_AGREES = 0.5  # share of the tolerance that added CPU time explains, and by which a timing is slower, at least
MORE_MEMORY = "more memory, and other software versions"

Shown = tuple[Statistic, Sequence[float | None], Sequence[float | None]]
"""A statistic, and its value in each launch of this run and of the other side."""


@dataclass(frozen=True, kw_only=True)
class Comparison(Compared):
    """One metric of both sides.

    Attributes:
        candidate: samples of this run's launches; a launch that lacks the metric has a sample without value.
        baseline: samples of the stored launches, or of the other launch of each pair; empty without a baseline.
        control: samples of the third launch of each triple: the other side once more, which then counts with the mean.
        statistic: statistic of pairs, if it is another one than that of their values or lower quantiles.
        ab: beginning of the sentences of triples: ``interleaved A/B with 3f2a91c0d4``.
        neighbours: runs of sizes that it belongs to, the shortest first, with their finding and their sizes.
        screening: result of screening a few launches, if interleaved ones can confirm it, or None.
        is_faster_machine: whether most timings of the case became faster alike.
    """

    candidate: Sequence[Sample]
    baseline: Sequence[Sample] = ()
    under: Circumstances
    control: Sequence[Sample] = ()
    ab: str = ""
    statistic: Statistic | None = None
    neighbours: Sequence[tuple[Neighbours, Finding, Sequence[Comparison]]] = ()
    screening: Screening | None = None
    is_faster_machine: bool = False

    @property
    def metric(self) -> Sample:
        return (self.candidate or self.baseline)[0]

    @property
    def known_as(self) -> Sample | None:
        return self.baseline[0] if self.baseline else None

    @property
    def missing(self) -> str:
        missed = self.new.count(None)
        return f"{missed} of {len(self.new)} launches" if missed and None not in self.old else ""

    @property
    def other_definition(self) -> str:
        return difference(self.baseline[0], self.metric)

    @property
    def first_deciders(self) -> tuple[Decider, ...]:
        return (*FIRST, of_unusable_baseline)

    def of_kind(self, better: Better) -> Comparison:
        return dataclasses.replace(self, candidate=[replace(m, better=better) for m in self.candidate])

    @property
    def sign(self) -> float:
        """1 if a larger number is worse, -1 if a smaller one is."""
        return METRIC_KINDS[self.metric.better].sign

    @property
    def is_paired(self) -> bool:
        return bool(self.under.looks)

    @property
    def is_last(self) -> bool:
        """Whether no launch will follow; launches without a value count too."""
        return len(self.candidate) >= self.under.most

    @cached_property
    def new(self) -> list[float | None]:
        return [self._value(m) for m in self.candidate]

    @cached_property
    def old(self) -> list[float | None]:
        if not self.control:
            return [self._value(m) for m in self.baseline]
        both = [(self._value(a), self._value(b)) for a, b in zip(self.baseline, self.control, strict=True)]
        return [math.sqrt(a * b) if a and b and min(a, b) > 0 else a for a, b in both]

    def _value(self, launch: Sample) -> float | None:
        """Value that is judged: for triples the lower quantile, which is less noisy on a shared machine."""
        return fast_value(launch) if self.ab and self.metric.is_noisy else launch.value

    @cached_property
    def known(self) -> tuple[list[float], list[float]]:
        """Values of the baseline and of this run, without launches that have none."""
        return [v for v in self.old if v is not None], [v for v in self.new if v is not None]

    @cached_property
    def shown(self) -> Shown:
        """Statistic that is judged, with its values."""
        values = [v for side in self.known for v in side]
        known = [m for m in self.candidate if m.value is not None]
        if not self.metric.is_noisy or min(values, default=0) <= 0:
            return "median", self.new, self.old
        if self.is_paired:
            timed = bool(self.ab) and any(are_timed([m]) for m in known)
            return self.statistic or ("A/B sqrt(min x p25)" if timed else "A/B"), self.new, self.old
        if not are_timed(known) or not are_timed(self.baseline):
            return "geometric mean", self.new, self.old
        return "sqrt(min x p25)", [fast_value(m) for m in self.candidate], [fast_value(m) for m in self.baseline]

    @property
    def ratio(self) -> float | None:
        """This run over the baseline, or None if one of them is missing, or the baseline is 0."""
        now, then = map(_middle(self.shown[0]), self.shown[1:])
        return now / then if now is not None and then else None

    @property
    def change(self) -> float:
        """Logarithm of the ratio, positive towards worse; 0 without a ratio."""
        return self.sign * math.log(self.ratio) if self.ratio and self.ratio > 0 else 0.0

    @cached_property
    def logs(self) -> tuple[list[float], list[float]]:
        """Logarithms of what is judged, of the baseline and of this run; all values are above 0."""
        timed = are_timed(self.baseline) and are_timed([m for m in self.candidate if m.value is not None])
        return fast_logs(self.baseline, timed=timed), fast_logs(self.candidate, timed=timed)

    @cached_property
    def difference(self) -> Difference:
        if not self.is_paired:
            return of_stored(*self.logs, self.under, self.sign)
        old, new = self.known
        return of_pairs([self.sign * math.log(b / a) for a, b in zip(old, new, strict=True)], self.null, self.under)

    @cached_property
    def null(self) -> list[float]:
        """A/A noise: difference within the other side in each triple, as logarithms."""
        both = [(self._value(a), self._value(b)) for a, b in zip(self.baseline, self.control, strict=False)]
        return [math.log(b / a) for a, b in both if a and b and min(a, b) > 0]

    @property
    def is_vetoed(self) -> bool:
        """Whether the A/A noise of triples is too large for this change to count."""
        return bool(self.ab) and abs(self.change) <= VETO * abs(statistics.fmean(self.null or [0.0]))

    @property
    def seen_so_far(self) -> str:
        """The slowdown that the pairs so far detect, in a clause, or "" if they agree well."""
        pairs = len(self.new)
        scatter = self.difference.error * math.sqrt(pairs)
        if scatter <= _SCATTER:
            return ""
        under = dataclasses.replace(self.under, looks=(*(n for n in self.under.looks if n < pairs), pairs))
        seen = smallest_slowdown(scatter, under)
        shown = f"from {format_change(1 + seen)} on" if seen <= BLIND_LIMIT else "beyond a doubling"
        return f"pairs scatter by {format_percent(scatter)}, so {pairs} of them detect slowdowns {shown}"

    @property
    def mde(self) -> float:
        excused = min(self.under.explained_by_others, LARGEST_EXPONENT)
        return max(self.difference.mde, 0.0 if is_size(self.metric.unit) else math.expm1(excused))

    def unexplained(self, direction: float) -> float:
        """Change towards worse (1) or better (-1), less what a change of load explains for stored launches."""
        change = direction * self.difference.worse_by
        candidate = [m for m in self.candidate if m.value is not None]
        if not are_timed(self.baseline) or not are_timed(candidate):
            return change
        old, new = stretches(self.baseline), stretches(candidate)
        error = LOAD_ERRORS * statistics.stdev(old) * math.sqrt(1 / len(old) + 1 / len(new))
        stretched = direction * (statistics.fmean(new) - statistics.fmean(old)) - error
        return change - min(max(0.0, stretched), max(0.0, LOAD_SHARE * change))

    def is_clear(self, direction: float) -> bool:
        """Whether it is worse (1) or better (-1) by more than the threshold, and only the code can be the reason."""
        if self.is_paired:
            return direction * self.difference.worse_by > self.difference.limit
        old, new = self.logs
        if not self.is_last and len(new) < OBVIOUS_LAUNCHES:
            return False
        limits, pairs = (1.0, CONFIRMING_PAIRS) if self.is_last else (OBVIOUS_LIMITS, 1.0)
        is_beyond = self.unexplained(direction) > limits * self.difference.limit
        return is_beyond and worse_pairs(old, new, direction * self.sign) >= pairs

    @property
    def is_ruled_out(self) -> bool:
        """Whether a change as large as the threshold, or the tolerance of pairs, would be visible by now."""
        found = self.difference
        if self.is_paired:
            df = len(self.candidate) - 1 + len(self.null)
            return found.worse_by + student_t_quantile(CONFIDENCE, df) * found.error < found.wanted
        near = max(0.0, found.limit - STANDARD_ERRORS * found.error)
        return -found.limit <= found.worse_by <= near

    def of_all(self, of: Whole) -> Comparison | None:
        """The same comparison with a mean over all iterations as each launch's value, or None if a side lacks them."""
        candidate = [m for m in self.candidate if m.value is not None]
        if self.ab and self.statistic is None:
            sides = [[by_all_iterations(m, of) for m in side] for side in (candidate, self.baseline, self.control)]
            new, old, again = ([m for m in side if m is not None] for side in sides)
            if not new or not len(new) == len(old) == len(again) == len(candidate):
                return None
            under = dataclasses.replace(
                self.under,
                tolerance=max(self.under.tolerance, LEAST_OF_ALL),
                comparisons=CAUTION * self.under.whole_comparisons,
                share=1.0,
            )
            ab = f"{self.ab}, mean over all iterations"
            return Comparison(
                candidate=new, baseline=old, control=again, under=under, ab=ab, statistic=_STATISTICS[of][1]
            )
        both = both_by_all_iterations(self.baseline, candidate, of)
        if self.is_paired or both is None:
            return None
        under = dataclasses.replace(self.under, tolerance=max(self.under.tolerance, LEAST_BY_STORED), noise_floor=0.0)
        return dataclasses.replace(self, baseline=both[0], candidate=both[1], under=under)

    def by_cpu_time(self) -> Comparison | None:
        """The comparison of pairs by CPU time, which other processes change less than wall time; None if unknown."""
        sides = [
            [replace(m, value=value_by(_BY_CPU, m), better="lower", spread=None) for m in side]
            for side in (self.candidate, self.baseline, self.control)
        ]
        if not self.is_paired or any(m.value is None for side in sides for m in side):
            return None
        return Comparison(
            candidate=sides[0],
            baseline=sides[1],
            control=sides[2],
            under=dataclasses.replace(self.under, comparisons=CAUTION * self.under.comparisons),
            ab=f"{self.ab}, CPU time of a rank" if self.ab else "",
            statistic=_BY_CPU,
        )

    @property
    def companions(self) -> dict[str, tuple[float, float]]:
        """Secondary signals of a timing, such as CPU time, by name: (median of the baseline, median of this run)."""
        names = self.metric.companions.keys() & (self.baseline[0].companions.keys() if self.baseline else ())
        return {
            name: (_of_companion(self.baseline, name), _of_companion(self.candidate, name))
            for name in self.metric.companions
            if name in names and self.candidate
        }

    def finding(
        self,
        code: ReasonCode,
        reason: str = "",
        *,
        threshold: float | None = None,
        mde: float | None = None,
        is_open: bool = False,
        shown: Shown | None = None,
    ) -> Finding:
        """Make the finding that a decider returns."""
        statistic, now, then = shown or self.shown
        middle, metric = _middle(statistic), self.metric
        facts = {**metric.identity, **metric.facts}
        row = REASONS[code]
        if self.ab and row.is_comparable and row.verdict not in ("new", "missing"):
            change = f"{self.ab}: {format_change(self.ratio or 1.0)} over {len(now)} pairs"
            itself = statistics.fmean(self.null) if self.null else None
            text = change if itself is None else f"{change}; A/A noise {format_change(math.exp(itself))}"
            says_more = row.verdict == "inconclusive" and reason and reason != MORE_LAUNCHES
            reason = f"{text}; {reason}" if says_more else text
            if itself is not None:
                facts["noise_floor"] = math.exp(itself) - 1
                if row.verdict == "regressed" and self.is_vetoed:
                    noise = format_change(math.exp(itself))
                    code, reason = "ab-disagrees", f"{change}, but A/A noise {noise}: this machine is too noisy"
        return Finding(
            metric=metric.key,
            code=code,
            unit=metric.unit,
            better=metric.better,
            current=middle(now),
            baseline=middle(then),
            statistic=statistic,
            threshold=threshold,
            mde=mde,
            launches=len(now),
            baseline_launches=len(then),
            reason=reason,
            at=metric.at,
            facts=facts,
            companions=self.companions,
            is_open=is_open and not self.is_last,
        )

    def noisy(self, code: ReasonCode, reason: str = "", *, mde: float | None = None, is_open: bool = False) -> Finding:
        """Finding of a decider of noisy metrics, with its threshold and the MDE."""
        threshold = math.expm1(min(self.difference.limit, LARGEST_EXPONENT))
        return self.finding(code, reason, threshold=threshold, mde=self.mde if mde is None else mde, is_open=is_open)


def _middle(statistic: Statistic) -> Callable[[Sequence[float | None]], float | None]:
    return median if statistic in ("median", "one rank") else geometric_mean


def unjudged(launches: Sequence[Sample]) -> Finding:
    """Finding of a metric without a verdict: the number that would be judged."""
    under = Circumstances(tolerance=0.0, comparisons=1)
    return Comparison(candidate=launches, under=under).finding("not-judged")


def value_by(statistic: Statistic, launch: Sample) -> float | None:
    """A launch's value under the named statistic, such as ``sqrt(min x p25)``; None if it cannot be computed."""
    if statistic.endswith("sqrt(min x p25)"):
        return fast_value(launch)
    if statistic == _BY_CPU:
        return launch.companions.get(CPU_S, 0.0) / max(1, launch.ranks) or None
    of_all = next((of for of, names in _STATISTICS.items() if statistic in names), None)
    return launch.value if of_all is None else of_all(launch)


def _of_companion(launches: Sequence[Sample], name: str) -> float:
    return statistics.median(m.companions.get(name, 0.0) for m in launches)


def as_info(measurement: Sample) -> Sample:
    return replace(measurement, better="info")


def of_unusable_baseline(c: Comparison) -> Finding | None:
    if not all(c.known):
        return c.finding("unusable-baseline", "the baseline has no value")
    if c.is_paired and (lacking := c.old.count(None)):
        return c.finding("unusable-baseline", f"no value in {lacking} of {len(c.old)} pairs")
    return None


def exactly(c: Comparison) -> Finding:
    new, old = set(c.new), set(c.old)
    where = first_difference(c.baseline[0].values, c.candidate)
    then, now = (format_values(values, c.metric.unit) for values in (c.old, c.new))
    if new == old and not where and (c.is_paired or len(new) == 1):
        return c.finding("equal", threshold=0.0)
    if len(old) > 1:
        of = " commit" * c.is_paired
        return c.finding(
            "unusable-baseline", f"differs between launches of the baseline{of} ({then}), so it is not exact"
        )
    if len(new) > 1:
        return c.finding("unstable-number", f"differs between launches of this run: {now}")
    if not c.under.same_software:
        text = f"{then} -> {now}, and the software versions differ"
        text = text if c.is_paired else "the number changed, and so did the software versions"
        return c.finding("other-software", text, threshold=0.0)
    return c.finding("exact-number", f"exact: {where or f'{then} -> {now}'}", threshold=0.0)


def first_difference(stored: Sequence[float], current: Sequence[Sample]) -> str:
    """First difference of a series from the stored one, or "" if none differs, or none is stored."""
    for series in (m.values for m in current if stored):
        at = next((i for i, (then, now) in enumerate(zip(stored, series, strict=False)) if then != now), len(stored))
        if at < len(stored):
            return f"value {at + 1} of {len(stored)} was {stored[at]:g} and is {series[at]:g}"
        if len(series) > len(stored):
            return f"{len(stored)} values became {len(series)}"
    return ""


def by_size(c: Comparison) -> Finding:
    found = _by_size(c, c.under.tolerance)
    if found.kind == "regressed" and not c.under.same_software and c.under.tolerance < OF_FEW_SIZES:
        wide = _by_size(c, OF_FEW_SIZES)  # a release may hold more in its libraries
        return wide if wide.kind == "regressed" else c.finding("other-software", MORE_MEMORY, threshold=found.threshold)
    return found


def _by_size(c: Comparison, tolerance: float) -> Finding:
    then, now = c.known
    unit = c.metric.unit
    highest = max(then) + _margin(max(then), tolerance, unit)
    middle = statistics.median(then)
    limit = highest / middle - 1 if middle > 0 else None
    is_enough = len(now) >= AGREEING_LAUNCHES
    above = sum(v > highest for v in now)
    if above == len(now):
        rank = c.metric.facts.get("rank")
        whose = "" if rank is None else f"rank {rank} needs the most memory"
        return c.finding("beyond-threshold", whose, threshold=limit, is_open=not is_enough)
    if (found := _hungrier(c.candidate, most_of_ranks(c.baseline), tolerance, unit)) is not None:
        least, before, reason = found
        limit = _margin(before, tolerance, unit) / before if before else None
        shown: Shown = "one rank", [least] * len(now), [before] * len(then)
        return c.finding("beyond-threshold", reason, threshold=limit, is_open=not is_enough, shown=shown)
    if above * 2 > len(now):
        reason = f"above {quantity(highest, unit)} in {above} of {len(now)} launches"
        return c.finding("noise", reason, threshold=limit)
    if all(v + _margin(v, tolerance, unit) < min(then) for v in now):
        return c.finding("better", threshold=limit, is_open=not is_enough)
    return c.finding("within-threshold", threshold=limit)


def _hungrier(
    current: Sequence[Sample], stored: Sequence[float], tolerance: float, unit: str
) -> tuple[float, float, str] | None:
    """Position among the sorted ranks that needs more in every launch: its least now, the old value, and a sentence.

    None if no position does, or the number of ranks differs.
    """
    if not stored or any(len(m.values) != len(stored) for m in current):
        return None
    ordered = [sorted(m.values, reverse=True) for m in current]
    for place, before in enumerate(stored):
        if all(launch[place] > before + _margin(before, tolerance, unit) for launch in ordered):
            least = min(launch[place] for launch in ordered)
            return least, before, f"{place + 1} ranks need {quantity(least, unit)} or more; in the baseline {place} did"
    return None


def _margin(value: float, tolerance: float, unit: str) -> float:
    return max(value * tolerance, LEAST_BYTES if is_size(unit) else 0.0)


def nothing_timed(c: Comparison) -> Finding | None:
    why = next(filter(None, map(why_nothing_was_timed, c.candidate)), "")
    return c.finding("nothing-timed" if any(c.known[0]) else "invalid-value", why) if why else None


def of_negative_time(c: Comparison) -> Finding | None:
    least, unit = min(c.known[0]), c.metric.unit
    if least >= 0 or is_size(unit) or not why_impossible(least, unit):
        return None
    return c.finding("unusable-baseline", f"a launch of the baseline took {quantity(least, unit)}: record it again")


def of_one_launch(c: Comparison) -> Finding | None:
    if c.is_paired or len(c.known[0]) > 1:
        return None
    return c.finding("unusable-baseline", "the baseline has one launch, so its noise is unknown")


_CONTINUOUS = ("s", "B", "B/s")  # units of what is no count, whether a value is whole or not


def by_order(c: Comparison) -> Finding | None:
    """Finding on launches of which one has a value of 0 or below, by the order of the values; else None."""
    old, new = c.known
    unit = c.metric.unit
    if min(*old, *new) > 0:
        return None
    if len({*old, *new}) == 1:
        return c.finding("equal", "equal in every launch")
    direction = 0.0
    for sign in (1.0, -1.0):
        worst = max(sign * c.sign * v for v in old)
        allowed = worst * (1 + c.under.tolerance) if worst > 0 else worst / (1 + c.under.tolerance)
        if not direction and min(sign * c.sign * v for v in new) > allowed:
            direction = sign
    if direction and (c.is_paired or c.is_last or len(new) >= OBVIOUS_LAUNCHES):
        largest = max(map(abs, (*old, *new)))  # scaled by it no square overflows
        then, now = [v / largest for v in old], [v / largest for v in new]
        if abs(statistics.fmean(now) - statistics.fmean(then)) > noise_of_means(then, now, c.under):
            text = f"{format_values(old, unit)} -> {format_values(new, unit)} in every launch"
            if direction > 0:
                code, excuse = c.under.excuse(unit, 0.0)
                return c.finding(code or "all-launches-worse", excuse or text)
            why = why_impossible(min(new), unit)
            return c.finding("invalid-value", why) if why else _better(c, c.finding, text)
    if direction and not c.is_last:
        return c.finding("launches-used-up", MORE_LAUNCHES, is_open=True)
    reason = "a value is zero or negative, so there is no ratio, and the launches are not clearly ordered"
    is_count = unit not in _CONTINUOUS and all(float(v).is_integer() for v in (*old, *new))
    return c.finding("noise", f"{reason}; record a count with better='exact'" if is_count else reason)


def asked_by_screening(c: Comparison) -> Finding | None:
    """Open finding, which asks for another launch, if the screening of few launches sees evidence of a slowdown."""
    if c.screening is None or c.is_last or not c.screening.asks(c.metric.key):
        return None
    return c.noisy("launches-used-up", MORE_LAUNCHES, is_open=True)


def slower(c: Comparison) -> Finding | None:
    if not c.is_clear(1.0) or c.is_vetoed:
        return None
    code, why = c.under.excuse(c.metric.unit, c.difference.worse_by)
    return None if code else c.noisy("beyond-threshold", why)


def slower_by_cpu_time(c: Comparison) -> Finding | None:
    """Its ranks compute longer, by more than the noise of CPU time, and the timing agrees.

    This noise is smaller than that of wall time if other processes use the CPUs. CPU time alone makes nothing slower,
    as it may be of a thread that nobody waits for, and it excuses nothing: a rank that sleeps computes no longer.
    """
    by_cpu = c.by_cpu_time()
    if c.metric.unit != "s" or by_cpu is None or by_cpu.is_vetoed or not by_cpu.is_clear(1.0):
        return None
    then_s, now_s, wall_s = (geometric_mean(values) or 0.0 for values in (by_cpu.old, by_cpu.new, c.old))
    added = min(c.change, math.log1p((now_s - then_s) / wall_s))
    if added <= _AGREES * c.difference.wanted:
        return None
    found = by_cpu.noisy("beyond-threshold")
    reason = found.reason or f"CPU time of a rank {format_change(by_cpu.ratio or 1.0)}"
    return replace(found, reason=f"{reason}; wall time {format_change(c.ratio or 1.0)}", companions=c.companions)


def slower_in_all_iterations(c: Comparison) -> Finding | None:
    """Finding if a mean of all iterations became slower, although the lower quantile of the iterations did not."""
    if c.is_clear(1.0) and not c.ab:
        return None
    found = [_slower_in(c, of) for of in WHOLES]
    return next((f for f in found if f is not None and not f.is_open), next(filter(None, found), None))


def _slower_in(c: Comparison, of: Whole) -> Finding | None:
    of_all = c.of_all(of)
    if of_all is not None and c.ab:
        found, looks_worse = decide(of_all), of_all.change > math.log1p(LEAST_OF_ALL) / 2
        if found.kind == "regressed":
            return replace(found, reason=f"{found.reason}{pattern(c.candidate[-1])}")
        return found if found.is_open and looks_worse else None
    if of_all is None or of_all.difference.worse_by <= of_all.difference.limit:
        return None
    if not of_all.is_clear(1.0):
        return None if c.is_last else c.noisy("launches-used-up", MORE_LAUNCHES, is_open=True)
    worse_by = of_all.difference.worse_by
    mean = "geometric mean of all iterations" if of is whole else "mean of the iterations"
    text = f"{format_change(math.exp(c.sign * worse_by))} by the {mean}{pattern(c.candidate[-1])}"
    code, excuse = c.under.excuse(c.metric.unit, worse_by)
    threshold = math.expm1(min(of_all.difference.limit, LARGEST_EXPONENT))
    shown: Shown = _STATISTICS[of][0], of_all.new, of_all.old
    return c.finding(code or "beyond-threshold", excuse or text, threshold=threshold, shown=shown)


_STATISTICS: dict[Whole, tuple[Statistic, Statistic]] = {
    whole: ("all iterations", "A/B all iterations"),
    paid: ("mean", "A/B mean"),
}
"""Mean over all iterations -> its name in findings: for stored launches, and for interleaved pairs."""


def pattern(launch: Sample) -> str:
    """Share of slow iterations, and how slow: ``: 1 of 10 iterations takes 60 ms instead of 10 ms``."""
    spread, is_rate = launch.spread, METRIC_KINDS[launch.better].sign < 0
    if spread is None or not spread.mean_but_slowest:
        return ""
    fast, slow = (spread.median, spread.minimum) if is_rate else (spread.p25, spread.p95)
    if not is_rate and slow < MARKEDLY * fast:
        slow = spread.p99
    mean = spread.mean
    if is_rate and spread.minimum > 0:  # the harmonic one, with the slowest
        mean = spread.n / ((spread.n - 1) / spread.mean_but_slowest + 1 / spread.minimum)
    times = [1 / v if is_rate else v for v in (fast, slow, mean) if v > 0]
    if len(times) < 3 or times[1] < MARKEDLY * times[0]:
        return ""
    share = Fraction((times[2] - times[0]) / (times[1] - times[0])).limit_denominator(10)
    instead = f"{quantity(slow, launch.unit)} instead of {quantity(fast, launch.unit)}"
    return f": about {share.numerator} of {share.denominator} iterations at {instead}" if 0 < share < 1 else ""


def vetoed(c: Comparison) -> Finding | None:
    """Finding on a timing that is slower than its threshold by less than the A/A noise allows: *inconclusive*."""
    return c.noisy("beyond-threshold") if c.is_vetoed and c.is_clear(1.0) else None


def better(c: Comparison) -> Finding | None:
    return _better(c, c.noisy) if c.is_clear(-1.0) else None


def much_better(c: Comparison) -> Finding | None:
    """Finding *improved* if every launch is faster by the factor :data:`TOO_GOOD`, and the other timings are not."""
    if c.is_paired or c.is_faster_machine or c.change > -math.log(TOO_GOOD):
        return None
    return _better(c, c.noisy) if worse_pairs(*c.logs, -c.sign) == 1.0 else None


def _better(c: Comparison, say: Callable[[ReasonCode, str], Finding], text: str = "") -> Finding:
    why = more_than_stored(c.baseline, c.candidate)
    return say("other-definition" if why else "better", why or text)


def changed_with_neighbours(c: Comparison) -> Finding | None:
    """Finding on the shortest run of neighbouring sizes that has one and whose sizes all changed beyond tolerance."""
    for run, found, sizes in c.neighbours:
        direction = -1.0 if found.kind == "improved" else 1.0
        have_changed = all(direction * one.change > math.log1p(one.under.tolerance) for one in sizes)
        if found.kind not in ("regressed", "improved") or not have_changed:
            continue
        by = format_change(found.ratio) if found.ratio is not None else found.kind
        limit = METRIC_KINDS[found.better].limit_text(found.threshold or 0.0)
        where = f"{format_bytes(run.sizes[0])} to {format_bytes(run.sizes[-1])}"
        text = f"with its neighbours: {by} over {len(run.sizes)} sizes, {where}, threshold {limit}"

        def say(code: ReasonCode, reason: str) -> Finding:
            return c.finding(code, reason, threshold=c.under.tolerance, mde=c.mde)

        return _better(c, say, text) if found.kind == "improved" else say(found.code, text)
    return None


def screened_as_healthy(c: Comparison) -> Finding | None:
    """Finding *unchanged* on a timing that screening does not suspect; *low power* if it would miss the tolerance."""
    sees = c.screening.sees(c.metric.key) if c.screening is not None else None
    if c.screening is None or sees is None or c.screening.is_suspicious(c.metric.key):
        return None
    return c.noisy("within-threshold" if sees <= c.under.tolerance else "low-power", mde=sees)


def asked_by_neighbours(c: Comparison) -> Finding | None:
    asks = any(found.is_open and all(one.change > 0 for one in sizes) for _, found, sizes in c.neighbours)
    return c.noisy("launches-used-up", MORE_LAUNCHES, is_open=True) if asks and not c.is_last else None


def slower_by_the_machine(c: Comparison) -> Finding | None:
    code, why = c.under.excuse(c.metric.unit, c.difference.worse_by)
    return c.noisy(code, why) if code and c.is_clear(1.0) else None


def still_open(c: Comparison) -> Finding | None:
    if c.is_last or c.is_ruled_out:
        return None
    return c.noisy("launches-used-up", c.seen_so_far if c.is_paired else MORE_LAUNCHES, is_open=True)


def blind(c: Comparison) -> Finding | None:
    is_blind = not c.is_paired and c.difference.limit > max(c.difference.wanted, math.log1p(BLIND_LIMIT))
    return too_noisy(c) if is_blind else None


def within(c: Comparison) -> Finding | None:
    found = c.difference
    is_within = found.worse_by <= max(found.wanted, STANDARD_ERRORS * found.error)
    return c.noisy("within-threshold") if (c.is_ruled_out if c.is_paired else is_within) else None


def busy(c: Comparison) -> Finding | None:
    if c.is_paired or not c.difference.worse_by > c.difference.limit >= c.unexplained(1.0):
        return None
    return c.noisy("machine-busy", "slower, but mostly in its slowest iterations, as on a busy machine")


def too_noisy(c: Comparison) -> Finding:
    mde = c.difference.mde
    size = f"+{mde:.0%}" if mde <= BLIND_LIMIT else "more than a doubling"
    if c.is_paired:
        return c.noisy("noise", f"not clear after {len(c.new)} pairs; minimum detectable slowdown {size}")
    return c.noisy("noise", f"too noisy; minimum detectable slowdown {size}")


RULES["noisy"] = (
    nothing_timed,
    of_negative_time,
    of_one_launch,
    by_order,
    asked_by_screening,
    slower,
    slower_by_cpu_time,
    slower_in_all_iterations,
    vetoed,
    better,
    much_better,
    changed_with_neighbours,
    screened_as_healthy,
    asked_by_neighbours,
    slower_by_the_machine,
    still_open,
    blind,
    within,
    busy,
    too_noisy,
)
RULES["exact"] = (exactly,)
RULES["memory"] = (by_size,)
