"""Verdicts on what a seeded training computed: one per metric, over all its seeds. Pure, no I/O.

The same seed under the same software repeats every number exactly, and must: any other value means that the code
computes something else. That holds under other software too if the golden curve is equal in every digit. It ends if the
software changed and there is no curve, or the curve shows that the arithmetic is another one; then chance has a part in
every number that follows, and each kind is judged by its own rule, whatever the curve does. One seed alone is judged
too, by what other digits do to such a number at most (:data:`ONE_SEED`), if a curve shows that it is the training of
the baseline's seed:

``curve``
    the first losses of each seed, step by step: beyond a share of how far the stored curve has changed
    (``golden_curve``) *changed*, within it but with other digits under the same software *numerics*. A curve that
    does not change, in both runs, is *inconclusive*: a training that does not learn shows no fault.
``same``
    a number that may neither rise nor fall, such as the mean training loss: two-sided paired t-test over the seeds at
    1 %, differences below 1e-3 ignored. Pairing removes what the seeds differ by, about twenty times of what is left.
``steps``
    steps to a goal: one-sided pooled t-test at 5 % of the olympic means (fastest and slowest seed dropped), as MLPerf's
    reference convergence points, but with Winsorised variance (Yuen, Biometrika 1974): the standard deviation of what
    is left after dropping is too small, and calls 18 % of unchanged trainings with 5 seeds worse, not 5 %. One seed of
    five or more may miss the goal, as the dropped slowest; more *regressed*. The interval between evaluations is the
    resolution.
``weights``
    the tensors that a training leaves (``weights_rule``).
``floor``
    a quality at the end, such as the final accuracy: one-sided pooled t-test at 1 %, and never below what chance does
    to a share of N test samples, ``sqrt(p (1 - p) / N)``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_distbench.judging import golden_curve, weights_rule
from pytest_distbench.judging.deciders import FIRST, RULES, Compared, Decider, decide
from pytest_distbench.judging.stats import BLIND_LIMIT, noise_limit, normal_quantile, pooled_stdev, student_t_quantile
from pytest_distbench.judging.terms import difference
from pytest_distbench.records.kinds import METRIC_KINDS, Better
from pytest_distbench.records.metric import LARGEST_NUMBER, WEIGHTS, Sample, Scalar, metric_key, without
from pytest_distbench.records.reasons import REASONS, ReasonCode
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import Finding, Statistic
from pytest_distbench.units import counted, format_share

CurveSays = Literal["nothing", "equal", "other digits", "diverges"]
"""What a training's curve shows: *nothing*, without a curve that can be compared; *equal* in all digits; *other
digits*, but the same training; or *diverges*, another training."""


Shown = tuple[Statistic, float | None, float | None]  # a statistic, and its value of this run and of the baseline


@dataclass(frozen=True, kw_only=True)
class Family(Compared):
    """One metric of a training with all its seeds.

    Attributes:
        current: key -> the sample in each launch; one key per seed.
        ends_alike: whether the weights at the end are the baseline's.
        updates: optimizer steps of a script, or 0 if unknown.
        is_exact: whether both sides compute in float32 throughout, so that other digits begin as rounding.
        can_repeat: whether the arithmetic was made to give the same digits each time, as that of a CPU does by itself.
        loss_share: largest deviation of the losses relative to their range, or None without losses to compare.
        lost_its_seed: whether the golden curve of the training shows that it was seeded and is not any more.
        tolerance: accepted relative change that was set for this metric or case, or None for the rule's own.
        asks: one more launch may be made, to distinguish a lost seed from a training that never repeats.
    """

    current: Mapping[str, Sequence[Sample]]
    stored: Mapping[str, Sequence[Sample]]
    same_software: bool
    is_exact: bool = False
    ends_alike: bool = False
    updates: int = 0
    curve: CurveSays = "nothing"
    loss_share: float | None = None
    can_repeat: bool = True
    lost_its_seed: bool = False
    tolerance: float | None = None
    asks: bool = False

    @property
    def metric(self) -> Sample:
        """One of this run's samples: name, unit, kind and identity are the same in all of them."""
        return next(iter(self.current.values()))[0]

    @property
    def known_as(self) -> Sample | None:
        return next((stored[0] for stored in self.stored.values()), None)

    @property
    def missing(self) -> str:
        missed = self.new.count(None)
        may_miss = self.stored and METRIC_KINDS[self.metric.better].counts_steps
        return f"{missed} of {counted(len(self.new), 'seed')}" if missed and not may_miss else ""

    @property
    def other_definition(self) -> str:
        lacking = [key for key in self.current if key not in self.stored]
        if lacking:
            return f"the baseline has no {lacking[0]}: this run uses other seeds"
        return next(filter(None, (difference(m[0], self.current[key][0]) for key, m in self.stored.items())), "")

    @property
    def first_deciders(self) -> tuple[Decider, ...]:
        return (of_own_curve, *FIRST[:-1], of_options, *FIRST[-1:])

    def of_kind(self, better: Better) -> Family:
        current = {key: [replace(m, better=better) for m in launches] for key, launches in self.current.items()}
        return dataclasses.replace(self, current=current)

    @property
    def is_by_launch(self) -> bool:
        """Whether launches are the samples: there is one seed, and the baseline's launches of it differ."""
        return len(self.current) == 1 and any(len({m.value for m in metric}) > 1 for metric in self.stored.values())

    @property
    def samples(self) -> str:
        return "launches" if self.is_by_launch else "seeds"

    @property
    def new(self) -> list[float | None]:
        """One value per seed: the mean over launches, or None if a launch has none; or one value per launch."""
        if self.is_by_launch:
            return [m.value for launches in self.current.values() for m in launches]
        return [_mean([m.value for m in launches]) for launches in self.current.values()]

    @property
    def old(self) -> list[float | None]:
        """The baseline's values of this run's seeds, the mean over its launches for each; or one value per launch."""
        if self.is_by_launch:
            return [m.value for metric in self.stored.values() for m in metric]
        return [_mean([m.value for m in self.stored[key]]) for key in self.current if key in self.stored]

    def finding(
        self,
        code: ReasonCode,
        reason: str = "",
        *,
        threshold: float | None = None,
        facts: Mapping[str, Scalar] | None = None,
        shown: Shown | None = None,
    ) -> Finding:
        """Make the finding that a decider returns; ``shown`` is what was judged, if not the mean of the seeds."""
        first = self.metric
        is_curve = METRIC_KINDS[first.better].is_curve
        is_open = self.asks and is_curve and float((facts or {}).get("deviation", 0.0)) > golden_curve.ROUNDING
        statistic, now, then = shown or ("mean of seeds", _mean_of_known(self.new), _mean_of_known(self.old))
        seeds = {"seeds": len(self.current)} if len(self.current) > 1 else {}
        at = without(first.at, "seed") if seeds else first.at
        return Finding(
            metric=metric_key(first.name, at),
            code=code,
            unit=first.unit,
            better=first.better,
            current=now,
            baseline=then,
            statistic=statistic,
            threshold=threshold,
            launches=len(next(iter(self.current.values()))),
            baseline_launches=max(map(len, self.stored.values()), default=0),
            reason=reason,
            at=at,
            facts={**first.identity, **first.facts, **seeds, **(facts or {})},
            is_open=is_open and REASONS[code].verdict == "changed",
        )

    def tolerance_or(self, default: float) -> float:
        return default if self.tolerance is None else self.tolerance


def _mean(values: Sequence[float | None]) -> float | None:
    found = known_values(values)
    return statistics.fmean(found) if len(found) == len(values) else None


def _mean_of_known(values: Sequence[float | None]) -> float | None:
    found = known_values(values)
    return statistics.fmean(found) if found else None


def known_values(values: Sequence[float | None]) -> list[float]:
    return [v for v in values if v is not None]


STEPS_ALPHA = 0.05  # error rate of the test of steps to a goal, that of MLPerf's reference convergence points

ALPHA = 0.01  # error rate of the other tests

SAME_TOLERANCE = 1e-3
"""A relative change of a ``same`` metric below this is no change: what rounding does to a mean loss in a few epochs."""

ONE_SEED = {"same": 0.1, "steps": 0.25, "floor": 0.05}
"""Relative change of a number of one seed that other digits of the same training do not cause: twice what was measured
(gradients in bfloat16 after 80 steps: 5 % of a validation loss)."""

RANKS_SHARE = 2.0
"""Factor on the accepted deviation of a mean by which single ranks may deviate, if the digits are others."""

ONE_SEED_CHANGED = "one seed changed by"
LOST_SEED = "the training is no longer seeded"
NOT_REPEATED = "this code does not reproduce its own losses"

FEWEST_OLYMPIC = 5  # with fewer seeds none is dropped, and none may miss the goal


def judge_family(family: Family) -> Finding:
    """Finding of the first decider of its kind that applies, unless the ranks behind an unchanged mean diverge."""
    try:
        finding = decide(family)
        if finding.kind == "unchanged" and (apart := _apart(family, finding)):
            return family.finding("ranks-apart", apart, threshold=finding.threshold, facts=finding.facts)
    except OverflowError:
        shown: Shown = "mean of seeds", None, None
        return family.finding("unavailable", "a number is too large to compute with", shown=shown)
    return finding


def _apart(family: Family, verdict: Finding) -> str:
    """Why the spread over ranks is not the baseline's, in a clause, or "": errors that cancel in the mean.

    It is not judged if launches of the baseline differ, or no curve confirms the same training.
    """
    if not family.stored or not _repeats(family) or any(_spread_of(stored) for stored in family.stored.values()):
        return ""
    is_curve = METRIC_KINDS[family.metric.better].is_curve
    says = curve_says(verdict) if is_curve else family.curve
    if not is_curve and says == "nothing" and not family.same_software:
        return ""
    is_exact = _is_same_arithmetic(family, says)
    known = golden_curve.RTOL if is_curve else ONE_SEED["same"]
    limit = golden_curve.ROUNDING if is_exact else family.tolerance_or(known) * RANKS_SHARE
    for key, launches in family.current.items():
        stored = family.stored[key][0]
        for m in launches:
            if stored.spread is None or m.spread is None or stored.ranks != m.ranks:
                continue
            if not stored.spread.over_ranks or not m.spread.over_ranks:
                continue
            values = stored.values if is_curve else [m.value or 0.0]
            for at, value in enumerate(values, 1):
                then, now = (side[min(at, len(side)) - 1] for side in (stored.spread.over_ranks, m.spread.over_ranks))
                if abs(now - then) > limit * (abs(value) + then):
                    where = f" at value {at}" if len(values) > 1 else ""
                    return (
                        f"the mean over {m.ranks} ranks agrees, the single ranks do not: their standard "
                        f"deviation{where} was {then:.4g} and is {now:.4g}{_seed_of(m)}"
                    )
    return ""


def of_own_curve(family: Family) -> Finding | None:
    """Finding on a curve without a baseline that cannot be recorded as one: launches differ, or it is flat."""
    if not METRIC_KINDS[family.metric.better].is_curve or family.stored:
        return None
    if own := _disagreement(family):
        return _not_repeated(family, own, "its")
    still = _stands_still(family)
    return family.finding("flat-curve", still) if still else None


def of_options(family: Family) -> Finding | None:
    """Finding on changed options of optimizers, compared under any software and for any number of updates."""
    for key, launches in family.current.items():
        for launch in launches:
            then = family.stored.get(key)
            if then and (found := weights_rule.option_changes(then[0].options, launch.options)):
                return family.finding("options", "; ".join(found[:_MOST_OPTIONS]), threshold=0.0)
    return None


_MOST_OPTIONS = 3


def of_lost_seed(family: Family) -> Finding | None:
    if not family.lost_its_seed or not _repeats(family):
        return None
    return family.finding("unseeded", "the baseline's launches were seeded, this run's are not")


def olympic(values: Sequence[float | None]) -> tuple[float, float, int]:
    """Mean, Winsorised sum of squares and number of the values left after the lowest and the highest were dropped.

    None is above every number. Fewer than :data:`FEWEST_OLYMPIC` values are all kept.
    """
    ordered = sorted(math.inf if v is None else v for v in values)
    kept = ordered[1:-1] if len(ordered) >= FEWEST_OLYMPIC else ordered
    winsorised = [kept[0], *kept, kept[-1]] if len(kept) < len(ordered) else kept
    middle = statistics.fmean(winsorised)
    return statistics.fmean(kept), sum((v - middle) ** 2 for v in winsorised), len(kept)


def _repeats(family: Family) -> bool:
    return all(len({m.value for m in stored}) == 1 for stored in family.stored.values())


def _spread_of(stored: Sequence[Sample]) -> float:
    """Largest relative deviation of the baseline's curves from that of its first launch; 0 if all are equal."""
    if not METRIC_KINDS[stored[0].better].is_curve or not stored[0].values:
        return 0.0
    return max(max(golden_curve.deviations(stored[0].values, m.values)) for m in stored)


def _is_same_arithmetic(family: Family, says: CurveSays | None) -> bool:
    """Whether the same code gives the same digits: the curve is equal, or, without one to compare, the software is."""
    return says == "equal" or (says == "nothing" and family.same_software)


def exactly(family: Family) -> Finding | None:
    """Compare digits if no curve shows another arithmetic: equal digits pass under any software."""
    if family.curve not in ("nothing", "equal") or not _repeats(family):
        return None
    changes = []
    largest = 0.0
    for key, launches in family.current.items():
        then, now = family.stored[key][0].value, list(dict.fromkeys(m.value for m in launches))
        if now != [then]:
            changes.append(f"{_quantity(then)} -> {', '.join(map(_quantity, now))}{_seed_of(launches[0])}")
            known = [v for v in now if v is not None and then]
            largest = max(largest, *(abs(v / then - 1) for v in known)) if then and len(known) == len(now) else math.inf
    if not changes:
        return family.finding("equal", threshold=0.0)
    if not _is_same_arithmetic(family, family.curve):
        return None
    more = f" and {len(changes) - 2} more" if len(changes) > 2 else ""
    why = "under the same software" if family.same_software else "where the losses agree in every digit"
    reason = f"exact {why}: {'; '.join(changes[:2])}{more}{_where(family)}"
    if METRIC_KINDS[family.metric.better].is_two_sided and largest <= golden_curve.ROUNDING:
        reason += ": rounding, which shows only after the recorded curve"
        return family.finding("numerics", reason, threshold=0.0)
    return family.finding("training-number", reason, threshold=0.0)


def _where(family: Family) -> str:
    text = ""
    for key, [m, *_] in family.current.items():
        then, now = family.stored[key][0].values, m.values
        at = next((i for i, (a, b) in enumerate(zip(then, now, strict=False)) if a != b), None)
        if at is not None:
            agree = "the first value agrees" if at == 1 else f"the first {at} values agree"
            before = f"{agree}; first other value: " if at else "no value agrees: "
            text = f"; {before}number {at + 1} ({_quantity(then[at])} -> {_quantity(now[at])})"
            break
    old, new = known_values(family.old), known_values(family.new)
    is_better = METRIC_KINDS[family.metric.better].has_floor and old and new and min(new) >= max(old)
    if family.curve == "equal":
        text += (
            "; the losses agree, so it is the evaluation or what follows them (a schedule, the order of a later epoch)"
        )
    elif is_better:
        text += "; better, but not the same training"
    return text


def by_curve(family: Family) -> Finding:
    rtol = family.tolerance_or(golden_curve.RTOL)
    worst: tuple[golden_curve.Divergence, Sample, list[float], bool] | None = None
    own = _disagreement(family)
    coarse = ""
    for key, launches in family.current.items():
        curve, spread = family.stored[key][0].values, _spread_of(family.stored[key])
        if spread > rtol or golden_curve.disagreement([m.values for m in family.stored[key]]) is not None:
            # The baseline's launches left one another: there is nothing that this run could follow.
            if not own and _launches(family) > 1:
                text = f"the baseline's launches were not seeded, this run's {_launches(family)} agree"
                reason, unlike = f"{text}: record the baseline again", {"deviation": spread}
                return family.finding("unusable-baseline", reason, facts=unlike)
            then = golden_curve.disagreement([m.values for m in family.stored[key]])
            left = own or then or golden_curve.Disagreement(1, spread)
            return _not_repeated(family, left, "its" if own else "the baseline's", facts={"deviation": spread})
        steps = min(len(m.values) for m in launches)
        if steps < len(curve) or not curve:
            reason = f"the baseline's curve has {len(curve)} steps, this run's has {steps}"
            return family.finding("unusable-baseline", reason)
        coarse = coarse or golden_curve.hides(curve)
        repeats = family.same_software and spread == 0.0
        rounding = 0.0 if repeats else max(golden_curve.ROUNDING, spread)
        for launch in launches:
            divergence = golden_curve.compare(
                curve, launch.values, rtol=family.tolerance, rounding=rounding, spread=spread
            )
            if worst is None or divergence.severity > worst[0].severity:
                worst = divergence, launch, curve, repeats
    assert worst is not None
    divergence, launch, curve, repeats = worst
    unit = "value" if launch.beside else "step"
    facts: dict[str, Scalar] = {"deviation": divergence.largest, f"differs_most_at_{unit}": divergence.largest_at}
    if divergence.starts_at is not None:
        facts[f"diverges_at_{unit}"] = divergence.starts_at
    at = divergence.largest_at - 1
    shown: Shown | None = ("step that differs most", launch.values[at], curve[at])
    say = functools.partial(
        family.finding, threshold=rtol, facts=facts, shown=None if divergence.is_identical else shown
    )
    what = f"{divergence.describe(launch.beside)}{_seed_of(launch)}"
    if own is None and divergence.exceeds_at is not None and repeats:
        own = _disagreement(family, rtol=0.0)  # what differs less than the tolerance is no spread of this baseline
    if own and (family.can_repeat or own.starts_at == 1):
        lost = f"{LOST_SEED if own.starts_at == 1 else NOT_REPEATED}: its launches {own.describe(launch.beside)}"
        return say("seed-lost" if own.starts_at == 1 else "determinism-lost", lost)
    if own and (divergence.exceeds_at is None or divergence.exceeds_at >= own.starts_at):
        return _not_repeated(family, own, "its", facts=facts)
    if divergence.exceeds_at is not None and _launches(family) > 1:
        what += f"; the {_launches(family)} launches of this run agree"
        what += ", so it is seeded" if divergence.exceeds_at == 1 else ""
    if divergence.exceeds_at is not None:
        return say("losses", f"{what}; {_causes(family, divergence, launch)}")
    if still := _stands_still(family):
        return say("flat-curve", still)
    if coarse and family.tolerance is None and (divergence.is_identical or not repeats):
        return say("too-few-digits", coarse)
    begins = _beginning(family) if family.same_software or divergence.is_identical else None
    if begins is not None and not begins[0].is_rounding:
        return say("losses", f"{_beginning_text(*begins)}; {_causes(family, divergence, launch)}")
    if divergence.is_identical and begins is not None:
        facts["deviation"] = begins[0].deviation
        return say("numerics", f"numerics changed behind the recorded curve, from number {begins[0].number} on")
    if divergence.is_identical:
        return say("equal", "equal in every digit")
    if repeats:
        where = (
            f"from {divergence.place(launch.beside)} on, by up to {format_share(divergence.largest)}{_seed_of(launch)}"
        )
        reason = f"numerics changed within the tolerance, {where}"
        return say("numerics", reason)
    return say("within-threshold", f"differs by up to {format_share(divergence.largest)}")


def _causes(family: Family, divergence: golden_curve.Divergence, launch: Sample) -> str:
    if family.ends_alike:
        return "the training ends in the same weights: what is printed changed, not the training"
    values = launch.whole_length or len(launch.values)
    is_each_update = not launch.beside or 0 <= values - family.updates <= 1
    return divergence.suggest(launch.beside, is_each_update=is_each_update)


def _beginning(family: Family) -> tuple[golden_curve.Beginning, Sample] | None:
    """The first difference of a seed's whole series from the baseline's, one larger than rounding first.

    Rounding begins with the last digits and grows from there. So the beginning of a difference counts, not how far it
    has gone when the series ends.
    """
    found = []
    for key, launches in family.current.items():
        stored = family.stored[key][0]
        then = stored.whole or stored.values
        for launch in launches:
            now = launch.whole or launch.values
            lengths = stored.whole_length or len(then), launch.whole_length or len(now)
            begins = golden_curve.beginning(then, lengths, now, is_exact=family.is_exact)
            if begins is not None:
                found.append((begins, launch))
    return min(found, key=lambda each: (each[0].is_rounding, each[0].number), default=None)


def _beginning_text(begins: golden_curve.Beginning, launch: Sample) -> str:
    label = launch.beside[begins.number - 1 : begins.number]
    where = f"number {begins.number}{f' ({label[0]})' if label else ''}"
    before = "the first loss agrees" if begins.number == 2 else f"the first {begins.number - 1} losses agree"
    before = f"{before} in every digit; " if begins.number > 1 else ""
    other = f"first other value: {where}, {_quantity(begins.then)} -> {_quantity(begins.now)}"
    return f"{before}{other}, which is more than rounding begins with{_seed_of(launch)}"


def _not_repeated(
    family: Family, found: golden_curve.Disagreement, whose: str, *, facts: Mapping[str, Scalar] | None = None
) -> Finding:
    """Finding on launches that differ: nobody seeded the training, or its arithmetic does not repeat."""
    if family.can_repeat or found.starts_at == 1:
        return family.finding("unseeded", f"{whose} launches {found.describe(family.metric.beside)}", facts=facts)
    code = "not-deterministic" if family.stored else "no-baseline"
    text = f"differ by up to {found.largest:.1e} from value {found.starts_at} on: {golden_curve.ARITHMETIC}"
    return family.finding(code, f"{whose} launches {text}", facts=facts)


def _disagreement(family: Family, *, rtol: float | None = None) -> golden_curve.Disagreement | None:
    rtol = family.tolerance_or(golden_curve.RTOL) if rtol is None else rtol
    for launches in family.current.values():
        found = golden_curve.disagreement([m.values for m in launches], rtol=rtol)
        if found is not None:
            return found
    return None


def _stands_still(family: Family) -> str:
    for launches in family.current.values():
        if still := golden_curve.stands_still(launches[0].values):
            return f"{still}{_seed_of(launches[0])}"
    return ""


def loss_share(family: Family) -> float | None:
    """The largest deviation of a loss of any seed and launch, relative to the range of the losses."""
    found = [
        golden_curve.share_of_range(then.whole or then.values, now.whole or now.values)
        for key, launches in family.current.items()
        for then in family.stored.get(key, [])[:1]
        for now in launches
    ]
    return max(found, default=None)


def _launches(family: Family) -> int:
    return min(map(len, family.current.values()))


def curve_says(verdict: Finding) -> CurveSays | None:
    """Translate a verdict on a curve for the judgement of the training's other numbers; None if none was compared."""
    if not METRIC_KINDS[verdict.better].is_curve or "deviation" not in verdict.facts:
        return None
    match verdict.kind:
        case "changed":
            return "diverges"
        case "unchanged":
            return "other digits" if verdict.facts["deviation"] else "equal"
        case "inconclusive" if verdict.code == "flat-curve" and not verdict.facts["deviation"]:
            return "equal"  # and stands still
        case _:
            return None


def by_mean(family: Family) -> Finding:
    old, new = known_values(family.old), known_values(family.new)
    if _lacks_values(family, old, new):
        return family.finding("unusable-baseline", "the baseline has no value")
    scale = abs(statistics.fmean(old))
    accepted = family.tolerance_or(SAME_TOLERANCE) * scale
    shift = statistics.fmean(new) - statistics.fmean(old)
    if family.is_by_launch and abs(shift) > accepted and len(old) + len(new) > 2:
        limit = max(accepted, _noise(old, new, ALPHA / 2))
        if abs(shift) <= limit:
            return _within(family, limit, scale)
        reason = f"went {'up' if shift > 0 else 'down'} by more than {len(old) + len(new)} launches differ"
        return family.finding("training-number", reason, threshold=_share(limit, scale))
    shifts = [] if family.is_by_launch else [b - a for a, b in zip(old, new, strict=True)]
    if abs(shift) <= accepted:
        return family.finding("within-threshold", threshold=_share(accepted, scale))
    if len(shifts) < 2:
        return _judge_one_seed(family, "same", shift, abs(shift), scale, accepted)
    noise = student_t_quantile(1 - ALPHA / 2, len(shifts) - 1) * statistics.stdev(shifts) / math.sqrt(len(shifts))
    limit = max(accepted, noise)
    if abs(shift) > limit:
        reason = f"went {'up' if shift > 0 else 'down'} over {len(shifts)} seeds; it should stay the same"
        return family.finding("training-number", reason, threshold=_share(limit, scale))
    return _within(family, limit, scale)


def _noise(old: Sequence[float], new: Sequence[float], alpha: float) -> float:
    return noise_limit(pooled_stdev(old, new), len(old), len(new), alpha)


def _lacks_values(family: Family, old: Sequence[float], new: Sequence[float]) -> bool:
    return not old if family.is_by_launch else len(old) < len(new)


def by_steps(family: Family) -> Finding:
    old, new = family.old, family.new
    missed, missed_before = new.count(None), old.count(None)
    if missed_before > (len(old) >= FEWEST_OLYMPIC):
        return family.finding(
            "unusable-baseline",
            f"the baseline missed its goal in {missed_before} of {len(old)} {family.samples}",
        )
    if missed > (len(new) >= FEWEST_OLYMPIC):
        return family.finding("goal-missed", f"goal missed in {missed} of {len(new)} {family.samples}")
    before, squares_old, n_old = olympic(old)
    now, squares_new, n_new = olympic(new)
    shown: Shown = "trimmed mean of seeds", now, before
    resolution = float(family.metric.identity.get("every", 1))
    accepted = max(resolution, family.tolerance_or(0.0) * before)
    note = f"goal missed in 1 of {len(new)} {family.samples}, counted as the slowest" if missed else ""
    if n_old + n_new < 3:
        if abs(now - before) <= accepted:
            return family.finding(
                "within-threshold",
                "within the interval of evaluations",
                threshold=_share(accepted, before),
                shown=shown,
            )
        return _judge_one_seed(family, "steps", now - before, now - before, before, accepted)
    stdev = math.sqrt((squares_old + squares_new) / (n_old + n_new - 2))
    limit = max(accepted, noise_limit(stdev, n_old, n_new, STEPS_ALPHA))
    if now - before > limit:
        return family.finding("goal-missed", note, threshold=_share(limit, before), shown=shown)
    if before - now > limit:
        return family.finding("better", note, threshold=_share(limit, before), shown=shown)
    return _within(family, limit, before, note, shown=shown)


def by_quality(family: Family) -> Finding:
    old, new = known_values(family.old), known_values(family.new)
    if _lacks_values(family, old, new):
        return family.finding("unusable-baseline", "the baseline has no value")
    before, now = statistics.fmean(old), statistics.fmean(new)
    is_share = 0 <= before <= 1
    samples = family.metric.identity.get("evaluation_samples") if is_share else None
    bounds = [family.tolerance_or(0.0) * abs(before)]
    if isinstance(samples, int):
        p = (before * samples + 1) / (samples + 2)  # Laplace's: a test set without an error has chance too
        each = math.sqrt(p * (1 - p) / samples)
        bounds.append(normal_quantile(1 - ALPHA) * each * math.sqrt(1 / len(old) + 1 / len(new)))
    if len(old) > 1:
        bounds.append(_noise(old, new, ALPHA))
    limit = max(bounds)
    if len(old) == 1 and samples is None and now < before - limit:
        return _judge_one_seed(family, "floor", now - before, before - now, before, limit, "evaluation_samples=")
    if before - now > limit:
        return family.finding("beyond-threshold", threshold=_share(limit, before))
    if now - before > limit and len(bounds) > 1:
        return family.finding("better", threshold=_share(limit, before))
    return _within(family, limit, before)


def by_tensors(family: Family) -> Finding:
    is_of_weights = family.metric.name == WEIGHTS
    share = weights_rule.accepted_share(is_exact=family.is_exact, loss_share=family.loss_share)
    worst: tuple[weights_rule.Change, str, str, bool] | None = None  # with how many, of which seed; same arithmetic
    shown: Shown = "norm", _mean_of_known(family.new), _mean_of_known(family.old)
    for key, launches in family.current.items():
        then = family.stored[key][0].tensors
        own = weights_rule.own_share(then)
        if own > weights_rule.OF_LOWER_PRECISION:
            why = "recorded, not judged: the baseline's launches differ"
            return family.of_kind("info").finding("not-judged", why)
        share = max(share, weights_rule.TIMES_SPREAD * own)
        of_saved = functools.partial(
            weights_rule.changes_of_saved, launches=len(family.stored[key]), ends_alike=family.ends_alike
        )
        look = weights_rule.changes if is_of_weights else of_saved
        for launch in launches:
            found = look(then, launch.tensors, share=share)
            if not family.same_software:  # a release may hold more tensors, or others
                found = [change for change in found if change.distance < math.inf] or found
            if not found:
                continue
            is_same = family.ends_alike or weights_rule.is_same_arithmetic(then, launch.tensors)
            is_same = is_same and not found[0].is_rounding
            one = found[0] if is_same or family.curve == "diverges" else weights_rule.beyond_noise(found, then)
            if worst is None or (is_same, one.excess) > (worst[3], worst[0].excess):
                number = len({change.name for change in found})
                others = (
                    f"; {number} of {len({n for of in then.values() for n in of})} tensors differ" if number > 1 else ""
                )
                worst = one, others, _seed_of(launch), is_same
    if worst is None:
        return family.finding("equal", threshold=0.0, shown=shown)
    one, others, seed, is_same = worst
    text = f"{one.name}{one.who} {one.text}{others}{seed}"
    say = functools.partial(family.finding, threshold=share, shown=shown)
    if not family.same_software and not (is_same and one.distance < math.inf):
        return say("other-software", f"under other software versions {text}")
    if is_same:
        what = "its weights at the end are not" if is_of_weights else "what it saves is not"
        return say("weights", f"the training is the same, {what}: {text}", threshold=0.0)
    if one.excess == math.inf == one.distance:  # another shape or dtype, or none: no digits explain that
        return say("weights", text)
    if family.curve == "diverges":
        return say("weights", f"{text}: it follows from the diverged loss curve")
    if one.excess > 1.0:
        return say("weights", f"{text}: rounding accounts for {share:.2g} of a change at most")
    return say("numerics", f"numerics changed within the tolerance: {text}", facts={"share": one.excess * share})


_BEYOND = {"same": "training-number", "steps": "goal-missed", "floor": "beyond-threshold"}
"""Reason of a number beyond its threshold, by rule."""

RULES["curve"] = (by_curve,)
RULES["same"] = (of_lost_seed, exactly, by_mean)
RULES["steps"] = (of_lost_seed, exactly, by_steps)
RULES["floor"] = (of_lost_seed, exactly, by_quality)
RULES["weights"] = (by_tensors,)


def _within(family: Family, limit: float, scale: float, reason: str = "", shown: Shown | None = None) -> Finding:
    share = _share(limit, scale)
    if share > BLIND_LIMIT:
        return family.finding("noise", "too noisy to detect a doubling; give more seeds", threshold=share, shown=shown)
    return family.finding("within-threshold", reason, threshold=share, shown=shown)


def _judge_one_seed(
    family: Family, rule: str, change: float, worse_by: float, scale: float, accepted: float, *others: str
) -> Finding:
    """Judge one seed that changed by more than is accepted, by how far chance goes.

    That limit is known if a curve confirms the same training with the same seed, or a tolerance was set.
    """
    known = accepted if family.tolerance is not None else ONE_SEED[rule] * abs(scale)
    limit = max(accepted, known)
    changed = f"{ONE_SEED_CHANGED} {abs(change / scale):.1%}" if scale else f"{ONE_SEED_CHANGED} {abs(change):.4g}"
    if worse_by > limit and (family.tolerance is not None or family.curve != "nothing"):
        why = "which follows from the diverged loss curve" if family.curve == "diverges" else "more than rounding can"
        reason = changed if family.tolerance is not None else f"{changed}, {why}"
        return family.finding(_BEYOND[rule], reason, threshold=_share(limit, scale))
    ways = ", or ".join(("(seeds=range(5); of a script a run each)", *others))
    reason = f"{changed}; that may be chance, and more seeds show it {ways}"
    return family.finding("one-seed", reason, threshold=_share(limit, scale))


def _share(limit: float, scale: float) -> float:
    return limit / abs(scale) if scale else limit


def _seed_of(measurement: Sample) -> str:
    return f" (seed {measurement.at['seed']})" if "seed" in measurement.at else ""


def _quantity(value: float | None) -> str:
    if value is None:
        return "none"
    return "no finite number" if value >= LARGEST_NUMBER else f"{value:.{golden_curve.DIGITS}g}"
