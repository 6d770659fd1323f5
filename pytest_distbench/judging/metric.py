"""From the measurements of one metric and its baseline to a verdict: the table of rules, and the short ones. Pure.

Numbers that do not depend on the clock (``exact``) are compared exactly while the software is the same. The others are
noisy: ``stored_rule`` has the rule for them. A regression seen while other processes kept the machine much busier than
when the baseline was taken is *inconclusive*, unless it is more than they can explain: the clock cannot tell the two
apart.

Peak memory is no clock: no load of the machine changes it, and a launch of the same code needs what the last one
needed, but for what allocators round and caches keep. So there is no statistics in its rule. With the tolerance, 20 %
unless the test says otherwise, or :data:`LEAST_BYTES`, whichever is more:

- *regressed*: every launch, three at least where there may be so many, is above the largest stored one by more;
- *improved*: every one is below the smallest stored one by more;
- else *unchanged*; *inconclusive* where more than half of the launches are above, and not all.

A rank that needs less than another counts too: the second hungriest is held against the second hungriest, and so on.
Ranks may change places between launches, so none is held against its own number.

Noisy values that are zero or negative have no logarithm: 4 GiB are not so many per cent more than 0 B. That they are
more is still beyond doubt where

1. every new value is worse than every old one, beyond the tolerance where that says something, and
2. the means differ by more than the noise allows, in the metric's own unit.

Then the metric *regressed*; the other way round it *improved*. All else is *inconclusive*, so that nothing becomes
green because it was zero once. A clock that reads 0 has timed nothing: that is no answer, and no baseline.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_distbench.judging.stats import LARGEST_EXPONENT, baseline_error_rate, noise_limit, pooled_stdev
from pytest_distbench.judging.stored_rule import DRIFT, OBVIOUS_LAUNCHES, Answer, Comparison, Wholes, draft_of
from pytest_distbench.judging.terms import Draft, Judgement, difference
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.metric import PEAK_MEMORY, Sample
from pytest_distbench.records.record import replace
from pytest_distbench.units import format_bytes, format_quantity, format_values, is_size, why_impossible

LEAST_BYTES = 16 * 2**20
"""A smaller change is none, whatever share it is: what a library loads or an allocator keeps for the next time."""

AGREEING_LAUNCHES = 3


def judge_by_size(draft: Draft, current: Sequence[Sample], baseline: Sequence[Sample], tolerance: float) -> Judgement:
    now, then = ([v for v in values if v is not None] for values in (draft.current, draft.reference))
    highest = max(then) + _margin(max(then), tolerance)
    middle = statistics.median(then)
    limit = highest / middle - 1 if middle > 0 else None
    is_enough = len(now) >= AGREEING_LAUNCHES
    above = sum(v > highest for v in now)
    if above == len(now):
        rank = draft.metric.facts.get("rank")
        whose = "" if rank is None else f"rank {rank} needs the most memory"
        return draft.settle("beyond-threshold", whose, threshold=limit, is_open=not is_enough)
    if (found := _hungrier(current, most_of_ranks(baseline), tolerance)) is not None:
        least, before, reason = found
        limit = _margin(before, tolerance) / before if before else None
        of_rank = Draft(draft.metric, [least] * len(now), [before] * len(then), "one rank")
        return of_rank.settle("beyond-threshold", reason, threshold=limit, is_open=not is_enough)
    if above * 2 > len(now):
        reason = f"above {format_bytes(highest)} in {above} of {len(now)} launches"
        return draft.settle("noise", reason, threshold=limit)
    if all(v + _margin(v, tolerance) < min(then) for v in now):
        return draft.settle("better", threshold=limit, is_open=not is_enough)
    return draft.settle("within-threshold", threshold=limit)


def most_of_ranks(launches: Sequence[Sample]) -> list[float]:
    """What the ranks needed at most in any of the launches, the hungriest first; empty where they do not say it."""
    ordered = [sorted(m.values, reverse=True) for m in launches]
    return [max(place) for place in zip(*ordered, strict=True)] if len({len(o) for o in ordered}) == 1 else []


def _hungrier(current: Sequence[Sample], stored: Sequence[float], tolerance: float) -> tuple[float, float, str] | None:
    """The place among the ranks that needs more in every launch: the least of it now, what it was, and a sentence.

    None: no place does, or the number of ranks is another one.
    """
    if not stored or any(len(m.values) != len(stored) for m in current):
        return None
    ordered = [sorted(m.values, reverse=True) for m in current]
    for place, before in enumerate(stored):
        if all(launch[place] > before + _margin(before, tolerance) for launch in ordered):
            least = min(launch[place] for launch in ordered)
            return least, before, f"{place + 1} ranks need {format_bytes(least)} or more; in the baseline {place} did"
    return None


def _margin(value: float, tolerance: float) -> float:
    return max(value * tolerance, LEAST_BYTES)


_CONTINUOUS = ("s", "B", "B/s")
"""Units of what is no count, whether a value is whole or not."""

Noise = Callable[[Sequence[float], Sequence[float]], float]
"""The largest difference between the means of old and new values that chance explains, in their unit."""


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
        noise: of values scaled to at most 1, so that no square overflows.
        sign: 1 where a larger number is worse, else -1.
        tolerance: as a fraction.
    """
    if len({*old, *new}) == 1:
        return Answer("equal", "equal in every launch")
    code = "all-launches-worse" if _is_beyond(old, new, sign, tolerance) else ""
    code = code or ("better" if _is_beyond(old, new, -sign, tolerance) else "")
    if code and is_enough:
        largest = max(map(abs, (*old, *new)))
        then, now = [v / largest for v in old], [v / largest for v in new]
        if abs(statistics.fmean(now) - statistics.fmean(then)) > noise(then, now):
            if code == "better" and (why := why_impossible(min(new), unit)):
                return Answer("invalid-value", why)
            return Answer(code, f"{format_values(old, unit)} -> {format_values(new, unit)} in every launch")
    if code and not is_last:
        return Answer("launches-used-up", "more launches are needed", is_open=True)
    return Answer("noise", _why_no_answer((*old, *new), unit))


def why_nothing_was_timed(measurement: Sample) -> str:
    """Why a clock that reads 0 says nothing; empty: it reads more, or this is no clock."""
    beside = measurement.companions
    if measurement.unit != "s" or measurement.value != 0 or "cpu_s" not in beside:
        return ""
    if "host_s" not in beside:
        return "the timing is 0 s: nothing was timed"
    host = format_quantity(beside["host_s"], "s")
    return (
        "the timing is 0 s: nothing ran on the device in this loop, or only on streams that the current one does not "
        f"wait for; the hosts of all ranks took {host} per iteration"
    )


def _is_beyond(old: Sequence[float], new: Sequence[float], sign: float, tolerance: float) -> bool:
    worst = max(sign * v for v in old)
    allowed = worst * (1 + tolerance) if worst > 0 else worst / (1 + tolerance)
    return min(sign * v for v in new) > allowed


def _why_no_answer(values: Sequence[float], unit: str) -> str:
    reason = "a value is zero or negative, so there is no ratio, and the launches are not clearly ordered"
    is_count = unit not in _CONTINUOUS and all(float(v).is_integer() for v in values)
    return f"{reason}; record a count with better='exact'" if is_count else reason


BUSIER_SHARE = 0.15
"""A machine is *busier than the baseline's* when other processes use this share of its cores more, or take this share
of the ranks' time on them."""
WAITS = 2.0
"""Work takes as many times longer as its threads wait for a CPU, or as there are fewer cores left for it; where ranks
wait for each other, and share caches with others, by this factor more at most. A choice, and a wide one: a change
beyond it is the code's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What a verdict depends on besides the samples.

    Attributes:
        tolerance: of this metric, as a fraction, 0.1 is 10 %.
        comparisons: noisy comparisons in this run; the error rate is shared over them.
        noise_floor: standard deviation of the logarithm that is typical for this metric's siblings, see
            :func:`~pytest_distbench.judging.stored_rule.typical_noise`.
        same_software: whether stored and new launches ran the same software on the same device model.
        busier_cores: how many more cores other processes used now than when the baseline was taken.
        crowding: how many times as long the ranks' work takes for others that want their CPUs, over what it was then;
            None: nobody looked, then or now, and the cores that others left have to tell.
        disturbance: why a slowdown may be the card's and not the code's, in a clause; empty: nothing speaks for it.
        share: of the error rate of a comparison, see :mod:`~pytest_distbench.judging.neighbours`.
        drift: reserve for what the machine drifts between the baseline and this run, see
            :data:`~pytest_distbench.judging.stored_rule.DRIFT`.
    """

    tolerance: float
    comparisons: int
    max_launches: int
    noise_floor: float = 0.0
    same_software: bool = True
    busier_cores: float = 0.0
    crowding: float | None = None
    cores: int = 1
    disturbance: str = ""
    share: float = 1.0
    drift: float = DRIFT

    @property
    def alpha(self) -> float:
        return baseline_error_rate(self.comparisons) * self.share

    @property
    def explained_by_others(self) -> float:
        """The slowdown, as logarithm of a ratio, that other processes may be the reason of; 0: none of it."""
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


def judge(current: Sequence[Sample], baseline: Sequence[Sample], under: Circumstances) -> Judgement:
    first = current[0]
    values = [m.value for m in current]
    known = [v for v in values if v is not None]
    draft = draft_of(current, baseline)
    if not first.is_judged:
        return draft.settle("not-judged", "recorded, not judged")
    if len(known) < len(values) and all(m.value is not None for m in baseline):
        missed = len(values) - len(known)
        return draft.settle("no-value", f"no value in {missed} of {len(values)} launches")
    if not baseline and first.name == PEAK_MEMORY:
        return unasked(draft)
    if not baseline:
        return draft.settle("no-baseline", "no baseline for this metric")
    if why_not := difference(baseline[0], first):
        return draft.settle("other-definition", why_not)
    stored = [m.value for m in baseline if m.value is not None]
    if not stored or not known:
        return draft.settle("unusable-baseline", "the baseline has no value")
    judgement = RULES[METRIC_KINDS[first.better].rule](draft, current, baseline, under)
    return Judgement(judgement.verdict, judgement.is_open and not _is_last(draft, under))


def unasked(draft: Draft) -> Judgement:
    """Of what is measured without being asked for, and has nothing to be compared with: it is shown."""
    shown = dataclasses.replace(draft, metric=as_info(draft.metric))
    return shown.settle("not-judged", "recorded, not judged")


def as_info(measurement: Sample) -> Sample:
    return replace(measurement, better="info")


def judge_exact(draft: Draft, current: Sequence[Sample], baseline: Sequence[Sample], under: Circumstances) -> Judgement:
    values, stored = ([m.value for m in side] for side in (current, baseline))
    if len(set(values)) > 1:
        if len(set(stored)) > 1:
            return draft.settle(
                "unusable-baseline", "differs between launches, now and in the baseline, so it is not exact"
            )
        now = format_values(values, draft.metric.unit)
        return draft.settle("unstable-number", f"differs between launches of this run: {now}")
    where = first_difference(baseline[0].values, current)
    if set(values) == set(stored) and not where:
        return draft.settle("equal", threshold=0.0)
    if not under.same_software:
        return draft.settle("other-software", "the number changed, and so did the software versions", threshold=0.0)
    then = format_values(stored, draft.metric.unit)
    what = where or f"{then} -> {format_values(values, draft.metric.unit)}"
    return draft.settle("exact-number", f"exact: {what}", threshold=0.0)


def first_difference(stored: Sequence[float], current: Sequence[Sample]) -> str:
    """Where a series leaves the stored one; empty where none is stored, or none does. One that is longer does."""
    for series in (m.values for m in current if stored):
        at = next((i for i, (then, now) in enumerate(zip(stored, series, strict=False)) if then != now), len(stored))
        if at < len(stored):
            return f"value {at + 1} of {len(stored)} was {stored[at]:g} and is {series[at]:g}"
        if len(series) > len(stored):
            return f"{len(stored)} values became {len(series)}"
    return ""


def judge_noisy(draft: Draft, current: Sequence[Sample], baseline: Sequence[Sample], under: Circumstances) -> Judgement:
    """Launches are samples: ``stored_rule``, and where there are no ratios, by order."""
    known = [m.value for m in current if m.value is not None]
    stored = [m.value for m in baseline if m.value is not None]
    if why_not := next(filter(None, map(why_nothing_was_timed, current)), ""):
        return draft.settle("nothing-timed" if any(stored) else "invalid-value", why_not)
    if len(stored) < 2:
        return draft.settle("unusable-baseline", "the baseline has one launch, so its noise is unknown")
    if min(*known, *stored) <= 0:
        return _judge_by_order(draft, known, stored, under)
    found = Comparison.of(
        [m for m in current if m.value is not None],
        baseline,
        tolerance=under.tolerance,
        alpha=under.alpha,
        most=under.max_launches,
        noise_floor=under.noise_floor,
        drift=under.drift,
    )
    wholes = Wholes.of([m for m in current if m.value is not None], baseline)
    if wholes is not None and found.answer.kind != "regressed":
        limit = wholes.limit(tolerance=under.tolerance, alpha=under.alpha, most=under.max_launches, drift=under.drift)
        is_beyond = wholes.is_beyond(limit, most=under.max_launches)
        if is_beyond is None and not found.answer.is_open:
            return draft.settle("launches-used-up", "more launches are needed", is_open=True)
        if is_beyond:
            slower = Answer("beyond-threshold", wholes.told)
            answer = _unless_disturbed(slower, under, draft.metric.unit, wholes.worse_by)
            return wholes.draft(draft.metric).settle(
                answer.code, answer.reason, threshold=math.expm1(min(limit, LARGEST_EXPONENT))
            )
    answer = _unless_disturbed(found.answer, under, draft.metric.unit, found.worse_by)
    limit = math.expm1(min(found.limit, LARGEST_EXPONENT))
    excused = min(under.explained_by_others, LARGEST_EXPONENT)
    return draft.settle(
        answer.code,
        answer.reason,
        threshold=limit,
        mde=max(found.mde, 0.0 if is_size(draft.metric.unit) else math.expm1(excused)),
        is_open=answer.is_open,
    )


DecisionRule = Callable[[Draft, Sequence[Sample], Sequence[Sample], Circumstances], Judgement]
"""Settles a draft, from the metric in each launch of this run, what is stored of it, and tolerance, error rate and
circumstances. Both sides have values. A judgement that is open asks for another launch, while there may be one."""

RULES: dict[str, DecisionRule] = {
    "noisy": judge_noisy,
    "exact": judge_exact,
    "memory": lambda draft, current, baseline, under: judge_by_size(draft, current, baseline, under.tolerance),
}
"""By the name that a kind's ``rule`` has. Those of trainings judge all seeds at once: ``training_rule``."""


def _judge_by_order(draft: Draft, known: Sequence[float], stored: Sequence[float], under: Circumstances) -> Judgement:
    def noise(old: Sequence[float], new: Sequence[float]) -> float:
        most = max(under.max_launches, len(new))
        return noise_limit(pooled_stdev(old, new), len(old), most, under.alpha, drift=under.drift)

    is_last = _is_last(draft, under)
    answer = compare_by_order(
        stored,
        known,
        noise,
        sign=METRIC_KINDS[draft.metric.better].sign,
        tolerance=under.tolerance,
        unit=draft.metric.unit,
        is_enough=is_last or len(known) >= OBVIOUS_LAUNCHES,
        is_last=is_last,
    )
    answer = _unless_disturbed(answer, under, draft.metric.unit)
    return draft.settle(answer.code, answer.reason, is_open=answer.is_open)


def _is_last(draft: Draft, under: Circumstances) -> bool:
    """Whether no launch will follow; those without a value count too."""
    return len(draft.current) >= under.max_launches


def _unless_disturbed(answer: Answer, under: Circumstances, unit: str, worse_by: float = 0.0) -> Answer:
    """A regression that may be the machine's is none; ``worse_by`` as a logarithm, 0 where there is no ratio."""
    if answer.kind != "regressed" or is_size(unit):
        return answer
    if under.explained_by_others == 0.0:
        return Answer("gpu-throttled", f"slower, but {under.disturbance}") if under.disturbance else answer
    others = under.others
    if math.isinf(under.explained_by_others):
        return Answer("machine-busy", f"slower, but {others}, which explains any slowdown")
    explained = f"{others}, which explains up to {math.exp(under.explained_by_others):.1f} times as slow"
    if worse_by < under.explained_by_others:
        return Answer("machine-busy", f"slower, but {explained}")
    return (
        Answer("gpu-throttled", f"slower, but {under.disturbance}")
        if under.disturbance
        else Answer(answer.code, f"{explained}; the slowdown is larger")
    )
