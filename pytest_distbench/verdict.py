"""The decision rule: stored launches and new launches of one metric in, a verdict out. Pure, no I/O.

One launch is one sample, its value the 25th percentile (the fast side) of the maximum over ranks. The rule
for noisy metrics, on logarithms, with "worse" positive:

1. ``d`` = mean of the new launches - mean of the stored ones.
2. The limit is the larger of the user's tolerance and what the noise allows:
   ``t(1 - alpha) * s * sqrt(1/n_stored + 1/n_new)``, ``s`` pooled over both but no less than what is typical for
   the sibling metrics of the case (ten launches may look quiet by luck), ``alpha`` the run's error rate divided by
   the number of comparisons in the run.
3. ``d`` no larger than one stored standard deviation (and than the limit): *unchanged*, and no further launch is
   needed. Otherwise the answer is open and another launch is asked for, up to the maximum.
4. At the maximum: ``d`` over the limit *and* every new launch worse than every stored one: *regressed*;
   over the user's tolerance but not that clear: *inconclusive*; below minus the limit: *improved*.

A regression seen while other processes kept the machine much busier than when the baseline was taken is
*inconclusive* too: the clock cannot tell the two apart. Numbers that do not depend on the clock (``exact``)
are compared exactly while the software is the same.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_distbench.records import BaselineMetric, Measurement, Verdict, VerdictKind
from pytest_distbench.stats import pooled_stdev, student_t_quantile
from pytest_distbench.units import format_quantity

RUN_ERROR_RATE = 0.02
"""Chance that a run on unchanged code has any false regression: shared over its comparisons."""

BUSIER_SHARE = 0.15
"""A machine is *busier than the baseline's* when other processes use this share of its cores more."""

FEWEST_SIBLINGS = 5
"""Fewer metrics of one name do not say what noise is typical."""

BLIND_LIMIT = 1.0
"""A limit above +100 % is no judgement: the noise hides a doubling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a verdict depends on besides the samples.

    Attributes:
        tolerance: the user's tolerance as a fraction, 0.1 is 10 %.
        comparisons: noisy comparisons in this run; the error rate is shared over them.
        max_launches: the most launches an open answer may ask for.
        noise_floor: standard deviation of the logarithm that is typical for this metric's siblings, see
            :func:`typical_noise`.
        same_software: whether stored and new launches ran the same software on the same device model.
        busier_cores: how many more cores other processes used now than when the baseline was taken.
        cores: cores of the machine.
    """

    tolerance: float
    comparisons: int
    max_launches: int
    noise_floor: float = 0.0
    same_software: bool = True
    busier_cores: float = 0.0
    cores: int = 1

    @property
    def alpha(self) -> float:
        """One-sided error rate of a single comparison."""
        return RUN_ERROR_RATE / max(1, self.comparisons)


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, and whether more launches could still change it."""

    verdict: Verdict
    is_open: bool


def judge(current: Sequence[Measurement], baseline: BaselineMetric | None, rule: Rule) -> Judgement:
    """Judge one metric.

    Args:
        current: the metric's measurement in each launch of this run, at least one.
        baseline: its stored values, or None.
        rule: tolerance, error rate and circumstances.
    """
    first = current[0]
    values = [m.value for m in current]
    known = [v for v in values if v is not None]
    draft = _Draft(first, known, baseline, len(values))
    if first.better == "info":
        return draft.settle("unchanged", "recorded, not judged")
    if len(known) < len(values) and (baseline is None or None not in baseline.launches):
        missed = len(values) - len(known)
        return draft.settle("regressed", f"no value in {missed} of {len(values)} launches")
    if baseline is None:
        return draft.settle("missing", "no baseline for this metric")
    if baseline.better != first.better:
        return draft.settle(
            "incomparable", f"the baseline is of kind {baseline.better!r}, this measurement of kind {first.better!r}"
        )
    stored = [v for v in baseline.launches if v is not None]
    if not stored or not known:
        return draft.settle("incomparable", "the baseline holds no value")
    if first.better == "exact":
        return _judge_exact(draft, values, baseline, rule)
    return _judge_noisy(draft, known, stored, baseline.tolerance, rule)


def not_measured(key: str, baseline: BaselineMetric) -> Verdict:
    """The verdict for a stored metric that this run did not produce."""
    stored = [v for v in baseline.launches if v is not None]
    return Verdict(
        metric=key,
        kind="incomparable",
        unit=baseline.unit,
        better=baseline.better,
        baseline=statistics.median(stored) if stored else None,
        baseline_launches=len(baseline.launches),
        reason="in the baseline, but not measured by this run",
    )


def smallest_detectable(sigma: float, *, n_stored: int, n_new: int, alpha: float) -> float:
    """Smallest slowdown, as a fraction, found with 90 % power: ``exp(k sigma) - 1``.

    ``k = (t(1 - alpha) + 1.28) sqrt(1/n_stored + 1/n_new)``, the usual two-sample power approximation.
    """
    df = n_stored + n_new - 2
    k = (student_t_quantile(1 - alpha, df) + 1.2816) * math.sqrt(1 / n_stored + 1 / n_new)
    return math.exp(min(k * sigma, 700.0)) - 1


def typical_noise(metrics: Mapping[str, BaselineMetric]) -> dict[str, float]:
    """The median noise of sibling metrics, by their common name: ``latency`` of a sweep over sizes.

    The standard deviation of ten launches is itself uncertain by a quarter, and launches taken in one stretch agree
    too well. Points of one sweep run on the same machine at the same time, so none is believed to be much quieter than
    half of them. Names with fewer than :data:`FEWEST_SIBLINGS` metrics have no typical noise.

    Returns:
        name without point -> median over its metrics of the standard deviation of the launches' logarithms.
    """
    found: dict[str, list[float]] = {}
    for key, metric in metrics.items():
        values = [math.log(v) for v in metric.launches if v is not None and v > 0]
        if metric.better in ("lower", "higher") and len(values) >= 2:
            found.setdefault(key.partition("[")[0], []).append(statistics.stdev(values))
    return {name: statistics.median(noise) for name, noise in found.items() if len(noise) >= FEWEST_SIBLINGS}


@dataclass(frozen=True, slots=True)
class _Draft:
    """The parts of a verdict that every branch shares."""

    first: Measurement
    known: list[float]
    baseline: BaselineMetric | None
    launches: int

    def settle(
        self, kind: VerdictKind, reason: str = "", *, limit: float | None = None, is_open: bool = False
    ) -> Judgement:
        stored = [v for v in self.baseline.launches if v is not None] if self.baseline else []
        now = statistics.median(self.known) if self.known else None
        then = statistics.median(stored) if stored else None
        verdict = Verdict(
            metric=self.first.key,
            kind=kind,
            unit=self.first.unit,
            better=self.first.better,
            current=now,
            baseline=then,
            ratio=now / then if now is not None and then else None,
            limit=limit,
            launches=self.launches,
            baseline_launches=len(self.baseline.launches) if self.baseline else 0,
            reason=reason,
            at=self.first.at,
            facts=self.first.facts,
        )
        return Judgement(verdict, is_open)


def _judge_exact(draft: _Draft, values: Sequence[float | None], baseline: BaselineMetric, rule: Rule) -> Judgement:
    if len(set(values)) > 1:
        if len(set(baseline.launches)) > 1:
            return draft.settle("incomparable", "differs between launches, now and in the baseline: not exact")
        return draft.settle("regressed", f"differs between launches of this run: {_listing(values, draft.first.unit)}")
    if set(values) == set(baseline.launches):
        return draft.settle("unchanged", limit=0.0)
    if not rule.same_software:
        return draft.settle("incomparable", "the number changed, and so did the software", limit=0.0)
    then = _listing(baseline.launches, draft.first.unit)
    return draft.settle("regressed", f"exact: {then} -> {_listing(values, draft.first.unit)}", limit=0.0)


def _judge_noisy(
    draft: _Draft, current: Sequence[float], stored: Sequence[float], stored_tolerance: float | None, rule: Rule
) -> Judgement:
    if min(*current, *stored, math.inf) <= 0:
        return draft.settle("incomparable", "a value is zero or negative: it has no ratio")
    sign = -1.0 if draft.first.better == "higher" else 1.0
    old = [sign * math.log(v) for v in stored]
    new = [sign * math.log(v) for v in current]
    tolerance = rule.tolerance if stored_tolerance is None else stored_tolerance
    wanted = math.log1p(tolerance)
    worse_by = statistics.fmean(new) - statistics.fmean(old)
    can_ask = len(new) < rule.max_launches
    if len(old) < 2:
        return draft.settle("incomparable", "the baseline has one launch: its noise is unknown", limit=tolerance)
    pooled, df = pooled_stdev(old, new)
    sigma = max(pooled, rule.noise_floor)
    noise = student_t_quantile(1 - rule.alpha, df) * sigma * math.sqrt(1 / len(old) + 1 / len(new))
    limit = max(wanted, noise)
    shown = math.expm1(min(limit, 700.0))
    if abs(worse_by) <= min(statistics.stdev(old), limit) and shown <= BLIND_LIMIT:
        return draft.settle("unchanged", limit=shown)
    if can_ask:
        return draft.settle("inconclusive", "more launches are needed", limit=shown, is_open=True)
    if worse_by > limit and min(new) > max(old):
        if rule.busier_cores > BUSIER_SHARE * rule.cores:
            return draft.settle(
                "inconclusive",
                f"slower, but other processes used {rule.busier_cores:.1f} cores more than when the baseline was taken",
                limit=shown,
            )
        return draft.settle("regressed", limit=shown)
    if worse_by < -limit and max(new) < min(old):
        return draft.settle("improved", limit=shown)
    if shown > BLIND_LIMIT or worse_by > wanted:
        seen = smallest_detectable(sigma, n_stored=len(old), n_new=len(new), alpha=rule.alpha)
        size = f"+{seen:.0%}" if seen <= BLIND_LIMIT else "more than a doubling"
        return draft.settle(
            "inconclusive", f"too noisy: the smallest slowdown we could have seen is {size}", limit=shown
        )
    return draft.settle("unchanged", limit=shown)


def _listing(values: Sequence[float | None], unit: str) -> str:
    distinct = list(dict.fromkeys(values))
    return ", ".join("none" if v is None else format_quantity(v, unit) for v in distinct[:4])
