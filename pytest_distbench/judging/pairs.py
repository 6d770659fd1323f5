"""The decision rule for launches of two revisions that ran in turns, and the verdicts of a case by it. Pure, no I/O.

One pair of launches is one sample, its value ``d`` the logarithm of this tree's value over the reference's, with
"worse" positive. What slows the machine slows both, and cancels. Judged after 5, 7, 10, 14, 20 and 28 pairs
(:func:`looks`):

1. The limit is the larger of the tolerance and what the noise allows, ``t(1 - alpha, n - 1) * s / sqrt(n)``;
   ``alpha`` is the run's error rate divided by its comparisons, and shared over the looks, the later the more.
2. Mean of ``d`` over the limit: *regressed*; below minus the limit: *improved*. Both end the question.
3. The upper 95 % bound of ``d`` below the tolerance: *unchanged*: a slowdown of that size is ruled out.
4. Otherwise more pairs; at the last look *inconclusive*.

``mde`` is the smallest slowdown that is found at the last look in nine of ten runs, for the noise seen.
Values that are zero or negative have no logarithm: they are judged by their order.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_distbench.judging.case import (
    add_witnesses,
    as_lost,
    can_repeat,
    judge_fingerprint,
    judge_missing,
    judge_trainings,
    lost_parts,
)
from pytest_distbench.judging.entry import make_entry, stored_samples
from pytest_distbench.judging.metric import (
    RULES,
    Circumstances,
    as_info,
    compare_by_order,
    first_difference,
    unasked,
    why_nothing_was_timed,
)
from pytest_distbench.judging.neighbours import Run, error_share, find_runs, runs_of_launch, support
from pytest_distbench.judging.stats import BLIND_LIMIT, LARGEST_EXPONENT, shared_error_rate, student_t_quantile
from pytest_distbench.judging.terms import Draft, Judgement, Terms, difference, version_changes
from pytest_distbench.records.case import Case
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import PEAK_MEMORY, Sample
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import Finding
from pytest_distbench.units import format_values

FIRST_LOOK, LAST_LOOK = 5, 28
"""Pairs."""

FEWEST_PAIRS = 3
"""With fewer the noise between pairs is not known."""

CONFIDENCE = 0.95
POWER = 0.9

ONE_AGAINST_TWO = 1.5
"""Of a launch of noise ``s`` and the mean of two others the difference has so many times the variance ``s^2``."""
_TWICE_OVER_MEAN = 2 / ONE_AGAINST_TWO
"""That of two launches is ``2 s^2``."""

_STEPS = 60
_HALVINGS = 18
_BEYOND = 20.0
"""As a logarithm."""
_WIDEST = 4.0
"""Sample standard deviations beyond four times the true one do not happen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairCircumstances:
    """What a verdict depends on besides the pairs.

    Attributes:
        tolerance: smallest slowdown that counts, as a fraction.
        comparisons: noisy comparisons in the run; the error rate is shared over them.
        looks: numbers of pairs after which is judged, ascending.
        share: of the error rate of a comparison, see :mod:`~pytest_distbench.judging.neighbours`.
        spending: a look's share of the error rate grows with this power of its pairs.
    """

    tolerance: float
    comparisons: int
    looks: tuple[int, ...]
    same_software: bool = True
    share: float = 1.0
    spending: int = 2

    def alpha(self, pairs: int) -> float:
        """One-sided error rate of one comparison at the look after so many pairs.

        Unless told otherwise it is spent in proportion to the square of the pairs: the noise of five pairs looks small
        by luck too easily for the first look to have an equal share.
        """
        spent = math.pow(pairs, self.spending) / sum(math.pow(n, self.spending) for n in self.looks)
        return shared_error_rate(self.comparisons) * self.share * spent


def looks(first: int, most: int) -> tuple[int, ...]:
    """Numbers of pairs after which is judged: the first, and two fifths more each time, up to the most."""
    found = [max(first, FEWEST_PAIRS)]
    while found[-1] < most:
        found.append(min(math.ceil(found[-1] * 7 / 5), most))
    return tuple(found)


def judge_pairs(
    pairs: Sequence[tuple[Sample | None, Sample | None]],
    under: PairCircumstances,
    itself: Sequence[tuple[Sample | None, Sample | None]] = (),
) -> Judgement:
    """Judge one metric at a look.

    Args:
        pairs: what the reference and this tree measured; None where one did not record it.
        itself: where the reference ran twice, and each pair has the mean of both, what it measured each time: the
            variance of that difference is 4/3 of that of a pair, and its mean is known to be zero.
    """
    reference = [a for a, _ in pairs if a is not None]
    current = [b for _, b in pairs if b is not None]
    old, new = [m.value for m in reference], [m.value for m in current]
    draft = Draft((current or reference)[0], new, old)
    if not draft.metric.is_judged:
        return draft.settle("not-judged", "recorded, not judged")
    kind = METRIC_KINDS[draft.metric.better]
    if draft.metric.name == PEAK_MEMORY and not (reference and current):
        return unasked(draft)
    if not reference:
        return draft.settle("no-baseline", "the baseline commit does not record this metric")
    if not current:
        return draft.settle("not-measured", "the baseline commit records it, the candidate does not")
    if why_not := difference(reference[0], draft.metric):
        return draft.settle("other-definition", why_not)
    if None in new and None not in old:
        return draft.settle("no-value", f"no value in {new.count(None)} of {len(new)} launches")
    name = kind.rule
    if name == "exact":
        return _judge_exact(draft, old, new, under, where=first_difference(reference[0].values, current))
    values = [
        (a.value, b.value)
        for a, b in pairs
        if a is not None and b is not None and a.value is not None and b.value is not None
    ]
    if len(values) < len(pairs):
        return draft.settle("unusable-baseline", f"no value in {len(pairs) - len(values)} of {len(pairs)} pairs")
    if name != "noisy":
        stored = stored_samples(reference)  # the rule knows no pairs
        tolerance = under.tolerance if kind.tolerance is None else kind.tolerance
        circumstances = Circumstances(
            tolerance=tolerance,
            comparisons=under.comparisons,
            max_launches=under.looks[-1],
            same_software=under.same_software,
            share=under.share,
        )
        return RULES[name](draft, current, stored, circumstances)
    if why_not := next(filter(None, map(why_nothing_was_timed, current)), ""):
        return draft.settle("nothing-timed" if any(a for a, _ in values) else "invalid-value", why_not)
    if min(v for pair in values for v in pair) <= 0:
        return _judge_by_order(draft, values, under)
    sign = METRIC_KINDS[draft.metric.better].sign
    twice = [(a.value, b.value) for a, b in itself if a is not None and b is not None]
    null = [math.log(b / a) for a, b in twice if a and b and min(a, b) > 0]
    return _judge_noisy(draft, [sign * math.log(b / a) for a, b in values], under, null)


def power(slowdown: float, sigma: float, under: PairCircumstances) -> float:
    """Chance that a true slowdown, as a fraction, is called a regression at the last look.

    The mean of n normal differences has to exceed ``max(log(1 + tolerance), t s / sqrt(n))``, where the sample's
    ``s`` is itself random: integrated over its distribution (chi with n - 1 degrees of freedom).

    Args:
        slowdown: the true one, 0.1 is 10 %.
        sigma: true standard deviation of a pair's logarithm.
    """
    n = under.looks[-1]
    df = n - 1
    error = sigma / math.sqrt(n)
    shift, least = math.log1p(slowdown), math.log1p(under.tolerance)
    if error == 0:
        return float(shift > least)
    critical = student_t_quantile(1 - under.alpha(n), df)
    normal = statistics.NormalDist()
    return sum(
        weight * normal.cdf((shift - max(least, critical * u * error)) / error) for u, weight in _sample_stdevs(df)
    )


def smallest_slowdown(sigma: float, under: PairCircumstances) -> float:
    """Smallest slowdown, as a fraction, whose :func:`power` is :data:`POWER`; inf where that is beyond all measure."""
    error = sigma / math.sqrt(under.looks[-1])
    critical = student_t_quantile(1 - under.alpha(under.looks[-1]), under.looks[-1] - 1)
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


def _judge_exact(
    draft: Draft, old: list[float | None], new: list[float | None], under: PairCircumstances, *, where: str
) -> Judgement:
    if set(old) == set(new) and not where:
        return draft.settle("equal", threshold=0.0)
    then, now = (format_values(values, draft.metric.unit) for values in (old, new))
    if len(set(old)) > 1:
        return draft.settle(
            "unusable-baseline", f"differs between launches of the baseline commit ({then}), so it is not exact"
        )
    if not under.same_software:
        return draft.settle("other-software", f"{then} -> {now}, and the software versions differ", threshold=0.0)
    return draft.settle("exact-number", f"exact: {where or f'{then} -> {now}'}", threshold=0.0)


def _judge_noisy(draft: Draft, worse_by: list[float], under: PairCircumstances, null: Sequence[float]) -> Judgement:
    n, df = len(worse_by), len(worse_by) - 1 + len(null)
    mean = statistics.fmean(worse_by)
    sigma = math.sqrt((sum((d - mean) ** 2 for d in worse_by) + sum(d**2 for d in null) / _TWICE_OVER_MEAN) / df)
    error = sigma / math.sqrt(n)
    wanted = math.log1p(under.tolerance)
    limit = max(wanted, student_t_quantile(1 - under.alpha(n), df) * error)
    seen = smallest_slowdown(sigma, under)
    code = "launches-used-up"
    reason = ""
    if mean > limit:
        code = "beyond-threshold"
    elif mean < -limit:
        code = "better"
    elif mean + student_t_quantile(CONFIDENCE, df) * error < wanted:
        code = "within-threshold"
    elif n < under.looks[-1]:
        reason = "more pairs are needed"
    else:
        size = f"+{seen:.0%}" if seen <= BLIND_LIMIT else "more than a doubling"
        code = "noise"
        reason = f"not clear after {n} pairs; minimum detectable slowdown {size}"
    is_open = code == "launches-used-up" and n < under.looks[-1]
    of_pairs = dataclasses.replace(draft, statistic="A/B")
    threshold = math.expm1(min(limit, LARGEST_EXPONENT))
    return of_pairs.settle(code, reason, threshold=threshold, mde=seen, is_open=is_open)


def _judge_by_order(draft: Draft, pairs: Sequence[tuple[float, float]], under: PairCircumstances) -> Judgement:
    n = len(pairs)

    def noise(old: Sequence[float], new: Sequence[float]) -> float:
        scatter = statistics.stdev(b - a for a, b in zip(old, new, strict=True))
        return student_t_quantile(1 - under.alpha(n), n - 1) * scatter / math.sqrt(n)

    answer = compare_by_order(
        [a for a, _ in pairs],
        [b for _, b in pairs],
        noise,
        sign=METRIC_KINDS[draft.metric.better].sign,
        tolerance=under.tolerance,
        unit=draft.metric.unit,
        is_enough=True,
        is_last=n >= under.looks[-1],
    )
    return draft.settle(answer.code, answer.reason, is_open=answer.is_open)


@functools.cache
def _sample_stdevs(df: int) -> list[tuple[float, float]]:
    points = [(i + 0.5) * _WIDEST / _STEPS for i in range(_STEPS)]
    density = [math.exp((df - 1) * math.log(u) - df * (u * u - 1) / 2) for u in points]
    return [(u, d / sum(density)) for u, d in zip(points, density, strict=True)]


def judge_paired(
    terms: Terms,
    case: Case,
    references: Sequence[LaunchRecord],
    launches: Sequence[LaunchRecord],
    *,
    tolerance_of: Callable[[Sample], float],
    looks: tuple[int, ...],
    cases: int,
    spending: int = 2,
    itself: tuple[Sequence[LaunchRecord], Sequence[LaunchRecord]] = ((), ()),
) -> list[Judgement]:
    """Judge every metric that either side recorded: times by pairs, trainings, fingerprints as against a baseline.

    See :class:`PairCircumstances` and :func:`judge_pairs` for ``spending`` and ``itself``.
    """
    null = _by_metric(terms, *itself)
    changed = ", ".join(version_changes(references[0].software, launches[0].software))
    found = _by_metric(terms, references, launches)
    pairs = {key: sides for key, sides in found.items() if not METRIC_KINDS[_first(sides).better].is_of_training}
    noisy = sum(_first(found).is_noisy for found in pairs.values())
    tolerances = {key: tolerance_of(_first(sides)) for key, sides in pairs.items()}
    under = PairCircumstances(
        tolerance=0.0,
        comparisons=cases * max(1, noisy),
        looks=looks,
        same_software=not changed,
        spending=spending,
    )
    stored = make_entry(case, references, references[0].software)
    here = {key: [b for _, b in sides if b is not None] for key, sides in found.items()}
    trainings = {key: measurements for key, measurements in here.items() if measurements}
    verdicts = judge_trainings(
        terms, trainings, stored.metrics, same_software=not changed, can_repeat=can_repeat([*references, *launches])
    )
    judgements = [Judgement(verdict, is_open=False) for verdict in verdicts]
    gone = {key: m for key, m in stored.metrics.items() if key not in trainings and key not in pairs}
    judgements += judge_missing(terms, launches, trainings, gone)
    runs = find_runs(map(_first, pairs.values()))
    alone = {
        key: judge_pairs(
            sides,
            dataclasses.replace(under, tolerance=tolerances[key], share=error_share(key, runs)),
            null.get(key, ()),
        )
        for key, sides in pairs.items()
    }
    of_itself = _of_runs(runs, *itself)
    of_runs = {
        run: judge_pairs(
            sides,
            dataclasses.replace(under, tolerance=min(tolerances[key] for key in run.keys), share=run.share),
            of_itself.get(run, ()),
        )
        for run, sides in _of_runs(runs, references, launches).items()
    }
    can_ask = len(launches) < looks[-1]
    for key, judgement in support(alone, of_runs, tolerances=tolerances, can_ask=can_ask).items():
        verdict = add_witnesses(judgement.verdict, stored.metrics.get(key, ()), here[key])
        judgements.append(judgement._replace(verdict=verdict))
    judgements = as_lost(judgements, lost_parts(terms, trainings, stored.metrics), trainings, stored.metrics)
    fingerprint = judge_fingerprint(terms, launches, stored.fingerprints, changed=changed, most=looks[-1])
    return judgements + ([fingerprint] if fingerprint is not None else [])


def not_there(terms: Terms, launch: LaunchRecord, reason: str) -> list[Finding]:
    under = PairCircumstances(tolerance=0.0, comparisons=1, looks=(1,))
    verdicts = [judge_pairs([(None, _as_wanted(terms, m))], under).verdict for m in launch.measurements]
    return [v if not v.is_judged else replace(v, reason=reason) for v in verdicts]


def _by_metric(
    terms: Terms, references: Sequence[LaunchRecord], launches: Sequence[LaunchRecord]
) -> dict[str, list[tuple[Sample | None, Sample | None]]]:
    """Metric key -> per pair what the reference and this tree measured; pairs started for other metrics left out."""
    found: dict[str, list[tuple[Sample | None, Sample | None]]] = {}
    sides = [(_by_key(terms, a), _by_key(terms, b)) for a, b in zip(references, launches, strict=True)]
    for key in dict.fromkeys(key for there, here in sides for key in (*here, *there)):
        found[key] = [
            (there.get(key), here.get(key))
            for (there, here), launch in zip(sides, launches, strict=True)
            if not launch.only or key in launch.only
        ]
    return found


def _of_runs(
    runs: Sequence[Run], references: Sequence[LaunchRecord], launches: Sequence[LaunchRecord]
) -> dict[Run, list[tuple[Sample | None, Sample | None]]]:
    """Run of neighbours -> per pair of launches what both sides measured of it as one, where both did."""
    found: dict[Run, list[tuple[Sample | None, Sample | None]]] = {}
    for there, here in zip(references, launches, strict=True):
        then = dict(runs_of_launch(there, runs))
        for run, now in runs_of_launch(here, runs):
            if run in then:
                found.setdefault(run, []).append((then[run], now))
    return {run: found[run] for run in runs if run in found}


def _by_key(terms: Terms, launch: LaunchRecord) -> dict[str, Sample]:
    return {m.key: _as_wanted(terms, m) for m in launch.measurements}


def _first(pairs: Sequence[tuple[Sample | None, Sample | None]]) -> Sample:
    return next(m for pair in pairs for m in reversed(pair) if m is not None)


def _as_wanted(terms: Terms, measurement: Sample) -> Sample:
    """A metric that the test does not want judged is for information."""
    return measurement if terms.wants(measurement.name) else as_info(measurement)
