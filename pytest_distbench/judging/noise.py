"""How much one metric moves between launches of unchanged code, and what can therefore be promised. Pure, no I/O.

A calibration launches every case in several rounds, some time apart. On logarithms of what the rule judges, the fast
side of a launch (:class:`~pytest_distbench.judging.stored_rule.Side`):

1. ``sigma``: standard deviation between the launches. Where an F test (one-way analysis of variance, 1 %) says that
   the rounds differ more than their launches explain, it is the deviation inside rounds, and ``drift`` the one between
   them: what neither more launches nor more iterations average out, because all launches of a run move together.
2. A baseline and a run are a round each. The rule's limit is made of ``sigma``, no less than is typical of the sibling
   metrics, and of its reserve for drift, or of ``2 drift^2`` where that is more. The difference has the variance
   ``sigma^2 (1/stored + 1/new) + 2 drift^2``. The smallest slowdown found nine times in ten follows as in
   :func:`~pytest_distbench.judging.stats.detectable_slowdown`.
3. The share of the 25th percentile's variance between launches that comes from timing too few iterations: the
   asymptotic variance of a sample quantile, ``q (1 - q) / (n f^2)``, with the density ``f`` taken from the quarter of
   the iterations between it and the median. Iterations depend on each other, so the true share is rather larger.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from pytest_distbench.judging.case import judge_launches
from pytest_distbench.judging.entry import make_entry
from pytest_distbench.judging.neighbours import error_share, find_runs
from pytest_distbench.judging.stats import detectable_slowdown
from pytest_distbench.judging.stored_rule import DRIFT, Side, are_timed, typical_of_siblings
from pytest_distbench.judging.terms import Terms
from pytest_distbench.judging.update_policy import FEWEST_LAUNCHES
from pytest_distbench.records.calibration import CaseNoise, MetricNoise
from pytest_distbench.records.choices import BASELINE_LAUNCHES, RUN_LAUNCHES
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.run import CaseResult

BUDGETS = ((BASELINE_LAUNCHES, RUN_LAUNCHES), (20, 20), (40, 40))
"""Launches stored and new. The first is what a run does unless told otherwise."""

MOST_NEEDED = 100
"""More launches than this are no remedy."""

_DRIFT_ERROR_RATE = 0.01
_FINEST, _COARSE, _COARSE_FROM = 0.01, 0.05, 0.1

Rounds = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Noise:
    """Of one metric, as standard deviations of logarithms.

    Attributes:
        sigma: between launches.
        drift: between rounds, beyond that.
        typical: ``sigma`` of its siblings: the rule does not believe that this metric is quieter.
    """

    sigma: float
    drift: float
    typical: float = 0.0


def noisy_metrics(results: Sequence[CaseResult]) -> dict[str, list[list[Measurement]]]:
    """The metrics of a case that have noise, each with its measurements round by round.

    Launches that failed do not count.
    """
    found: dict[str, list[list[Measurement]]] = {}
    for i, result in enumerate(results):
        for measurement in chain.from_iterable(launch.measurements for launch in passed_launches(result)):
            is_noisy = measurement.is_noisy and measurement.value is not None
            if is_noisy and measurement.value > 0:  # type: ignore[operator] # is_noisy says it is a number
                rounds = found.setdefault(measurement.key, [])
                rounds += [[] for _ in range(i + 1 - len(rounds))]
                rounds[i].append(measurement)
    enough = {key: [r for r in rounds if r] for key, rounds in found.items()}
    return {key: rounds for key, rounds in enough.items() if sum(map(len, rounds)) >= FEWEST_LAUNCHES}


def passed_launches(result: CaseResult) -> list[LaunchRecord]:
    """The launches that measured everything."""
    return [launch for launch in result.launches if launch.outcome == "passed"]


def noise_of_case(results: Sequence[CaseResult], *, alpha: float, tolerance: float, comparisons: int) -> CaseNoise:
    """Everything a calibration says about one case."""
    found = {key: (rounds, *sigma_and_drift(_logarithms(rounds))) for key, rounds in noisy_metrics(results).items()}
    typical = typical_of_siblings({key: sigma for key, (_, sigma, _) in found.items()})
    runs = find_runs(rounds[0][0] for rounds, _, _ in found.values())
    metrics = [
        _noise_of_metric(
            rounds,
            Noise(sigma, drift, typical.get(rounds[0][0].name, 0.0)),
            alpha=alpha * error_share(key, runs),
            tolerance=tolerance,
        )
        for key, (rounds, sigma, drift) in found.items()
    ]
    alarms, count = false_alarms(results, tolerance=tolerance, comparisons=comparisons)
    return CaseNoise(
        case=results[0].case,
        launch_s=statistics.median(launch.wall_s for result in results for launch in passed_launches(result)),
        rounds=[len(passed_launches(result)) for result in results],
        metrics=sorted(metrics, key=lambda m: -m.detectable[budget_name(BUDGETS[0])]),
        alarms=alarms,
        comparisons=count,
    )


def sigma_and_drift(rounds: Rounds) -> tuple[float, float]:
    """Standard deviations between launches, and between rounds beyond that."""
    together = statistics.stdev(chain.from_iterable(rounds))
    total, count = sum(map(len, rounds)), len(rounds)
    if count < 2 or total <= count or together == 0.0:
        return together, 0.0
    within = sum(len(values) * statistics.pvariance(values) for values in rounds) / (total - count)
    middle = statistics.fmean(chain.from_iterable(rounds))
    between = sum(len(values) * (statistics.fmean(values) - middle) ** 2 for values in rounds) / (count - 1)
    if not _rounds_differ(between, within, count - 1, total - count):
        return together, 0.0
    typical_size = (total - sum(len(values) ** 2 for values in rounds) / total) / (count - 1)
    return math.sqrt(within), math.sqrt((between - within) / typical_size)


def smallest_slowdown(noise: Noise, *, stored: int, new: int, alpha: float) -> float:
    """Smallest slowdown found nine times in ten, as a fraction, against a baseline of another time.

    By the rule's limit, or by the one that keeps its error rate where the machine drifts more than the rule expects.
    """
    believed = max(noise.sigma, noise.typical)
    average, moved = 1 / stored + 1 / new, 2 * noise.drift**2
    limit_variance = believed**2 * average + max(DRIFT * believed**2, moved)
    extra = noise.sigma**2 * average + moved - limit_variance
    return detectable_slowdown(math.sqrt(limit_variance / average), stored, new, alpha, extra_variance=extra)


def launches_needed(noise: Noise, *, tolerance: float, alpha: float) -> int | None:
    """The fewest new launches that hold a tolerance, with as many stored but no fewer than a baseline has.

    None: not even :data:`MOST_NEEDED`. Often no number would: what the rule keeps for drift is no less for launches.
    """
    least_stored = BUDGETS[0][0]
    for new in range(1, MOST_NEEDED + 1):
        if smallest_slowdown(noise, stored=max(least_stored, new), new=new, alpha=alpha) <= tolerance:
            return new
    return None


def iterations_share(measurements: Sequence[Measurement], sigma: float) -> float | None:
    """Share of the values' variance between launches, ``sigma**2``, that comes from timing too few iterations.

    0 to 1; None where no series was timed.
    """
    variances = [variance for m in measurements if (variance := variance_of_iterations(m)) is not None]
    is_known = len(variances) == len(measurements) > 0
    return min(1.0, statistics.median(variances) / sigma**2) if is_known and sigma else None


def variance_of_iterations(measurement: Measurement) -> float | None:
    """Variance of the logarithm of a launch's 25th percentile that comes from timing only so many iterations.

    None where no series was timed.
    """
    summary = measurement.summary
    if summary is None or not METRIC_KINDS[measurement.better].has_fast_side or summary.p25 <= 0 or summary.n < 2:
        return None
    density = 0.25 / max(summary.median - summary.p25, 1e-12 * summary.p25)
    return float(0.25 * 0.75 / (summary.n * density**2 * summary.p25**2))


def proposed_tolerance(slowdown: float) -> float:
    """A round number no smaller than the slowdown: steps of 1 % up to 10 %, then of 5 %; at least 1 %."""
    step = _FINEST if slowdown <= _COARSE_FROM else _COARSE
    return round(max(1, math.ceil(round(slowdown / step, 6))) * step, 2)


def budget_name(budget: tuple[int, int]) -> str:
    """Key of :attr:`MetricNoise.detectable`: ``10+10``."""
    return f"{budget[0]}+{budget[1]}"


def false_alarms(results: Sequence[CaseResult], *, tolerance: float, comparisons: int) -> tuple[list[str], int]:
    """Judge the later half of the launches against the earlier one and the reverse, as a run would.

    Returns:
        the metrics called regressed, which nothing is, and how many were judged.
    """
    half = len(results) // 2
    halves = [
        [launch for result in part for launch in passed_launches(result)] for part in (results[:half], results[half:])
    ]
    stored, new = BUDGETS[0]
    alarms: list[str] = []
    count = 0
    for before, after in (halves, halves[::-1]):
        if min(len(before), len(after)) >= 2:
            kinds = _judge(results[0], before[-stored:], after[:new], tolerance=tolerance, comparisons=comparisons)
            alarms += [metric for metric, kind in kinds.items() if kind == "regressed"]
            count += len(kinds)
    return alarms, count


def _logarithms(rounds: Sequence[Sequence[Measurement]], *, values_only: bool = False) -> list[list[float]]:
    """What the rule judges of each launch; or what was recorded."""
    timed = not values_only and all(map(are_timed, rounds))
    return [Side.of_measurements(launches, timed=timed).fast for launches in rounds]


def _noise_of_metric(
    rounds: Sequence[Sequence[Measurement]], noise: Noise, *, alpha: float, tolerance: float
) -> MetricNoise:
    measurements = list(chain.from_iterable(rounds))
    found = {
        budget_name((stored, new)): smallest_slowdown(noise, stored=stored, new=new, alpha=alpha)
        for stored, new in BUDGETS
    }
    of_values, _ = sigma_and_drift(_logarithms(rounds, values_only=True))
    return MetricNoise(
        metric=measurements[0].key,
        unit=measurements[0].unit,
        median=statistics.median(m.value for m in measurements if m.value is not None),
        launches=len(measurements),
        sigma=noise.sigma,
        drift=noise.drift,
        iterations_share=iterations_share(measurements, of_values),
        detectable=found,
        tolerance=proposed_tolerance(found[budget_name(BUDGETS[0])]),
        launches_needed=launches_needed(noise, tolerance=tolerance, alpha=alpha),
    )


def _rounds_differ(between: float, within: float, df_between: int, df_within: int) -> bool:
    from scipy.stats import f

    return within == 0.0 or float(f.sf(between / within, df_between, df_within)) < _DRIFT_ERROR_RATE


def _judge(
    like: CaseResult,
    before: list[LaunchRecord],
    after: Sequence[LaunchRecord],
    *,
    tolerance: float,
    comparisons: int,
) -> Mapping[str, str]:
    """Metric -> kind of its verdict, launch after launch while it is open, as a run would."""
    terms = Terms(default_tolerance=tolerance, max_launches=len(after), cores=like.environment.cores)
    entry = make_entry(like.case, before, before[0].software)
    settled: dict[str, str] = {}
    for n in range(1, len(after) + 1):
        judgements = judge_launches(terms, after[:n], entry, case=like.case, comparisons=comparisons)
        for judgement in judgements:
            verdict = judgement.verdict
            if verdict.is_noisy and (n == len(after) or not judgement.is_open):
                settled.setdefault(verdict.metric, verdict.kind)
    return settled
