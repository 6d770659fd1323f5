"""Make baselines of launches: are there enough of them, and what does an update write? Pure.

An exact number needs two launches, which show whether it repeats. A timing needs :data:`FEWEST_LAUNCHES`, so that the
noise between launches can be estimated, and then as many as it takes until the tolerance decides a comparison, and not
the noise: until ``noise_limit`` of later runs (``thresholds``) is below the tolerance. More would change nothing.

The noise is estimated from the launches that are stored. Stopping as soon as it looks small would keep baselines that
look quieter than their machine is. Therefore its upper confidence bound has to be small enough, over all metrics of the
case; and a sibling's noise counts if it is larger. ``benchmarks/verdict_rules.py`` measures what that does to verdicts.

**How good a baseline is.** The noise of a timing is the standard deviation of the logarithm of what is judged of each
launch, and no less than what is typical for its siblings. The stored comparison is that of ``thresholds`` with the most
launches of a run; interleaved A/B is that of ``confirmation`` with the most pairs, each of one launch of the candidate
and two of the baseline commit. An environment shift between the two occasions costs the first more than is computed
here, and the second less.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from pytest_distbench.judging import golden_curve
from pytest_distbench.judging.fingerprint_rule import fingerprints_of
from pytest_distbench.judging.stats import (
    BASELINE_ERROR_RATE,
    chi_square_quantile,
    noise_limit,
    smallest_detectable,
)
from pytest_distbench.judging.terms import (
    Terms,
    accepted_changes,
    most_of_ranks,
    series_length,
    version_changes,
    why_nothing_was_timed,
)
from pytest_distbench.judging.thresholds import (
    LOOKS,
    ONE_AGAINST_TWO,
    SHIFT,
    SPENDING,
    Circumstances,
    fast_logs,
    noise_of,
    smallest_slowdown,
    typical_noise,
    typical_of_siblings,
)
from pytest_distbench.judging.weights_rule import stored_tensors
from pytest_distbench.judging.words import metric_text
from pytest_distbench.records.case import BaselineEntry, Case
from pytest_distbench.records.environment import GpuReport
from pytest_distbench.records.kinds import METRIC_KINDS, median
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import (
    CPU_S,
    CPU_SPREAD,
    HOST_S,
    PHASE,
    UNASKED,
    UNTIL_CHANGED,
    Sample,
    Scalar,
    Spread,
    metric_name,
)
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import Finding
from pytest_distbench.records.wanted import RUN_LAUNCHES
from pytest_distbench.units import is_size, why_impossible

FEWEST_TO_SPREAD = 3  # launches; fewer do not show how much they differ


def _launch_s(launches: Sequence[LaunchRecord], before: BaselineEntry | None) -> float:
    # a value that changes with each update is a merge conflict of any two branches
    now = _round(statistics.median(launch.wall_s for launch in launches))
    known = before.launch_s if before is not None else None
    return known if known is not None and known / 2 <= now <= known * 2 else now


def make_baseline(
    case: Case, launches: Sequence[LaunchRecord], software: dict[str, str], *, before: BaselineEntry | None = None
) -> BaselineEntry:
    """Make the baseline of these launches, without info metrics; keeps what was set by hand in ``before``."""
    measured: dict[str, list[Sample]] = {}
    for launch in launches:
        for measurement in launch.measurements:
            measured.setdefault(measurement.key, []).append(measurement)
    metrics = {key: stored_samples(found) for key, found in measured.items() if found[0].is_judged}
    tolerances = before.tolerances if before is not None else {}
    return BaselineEntry(
        workload=case.workload,
        conditions=case.conditions,
        test_id=case.id,
        params=case.params,
        software=software,
        metrics=metrics,
        tolerances={
            key: value
            for key, value in tolerances.items()
            if key in metrics and not METRIC_KINDS[metrics[key][0].better].is_exact
        },
        foreign_cores=_of_median(launch.foreign_cores for launch in launches),
        foreign_wanted=_of_median(launch.foreign_wanted for launch in launches),
        crowding=_of_median(launch.crowding for launch in launches),
        fingerprints=fingerprints_of(launches),
        phases={name: _round(seconds) for name, seconds in phases_of(launches).items()},
        launch_s=_launch_s(launches, before),
        gpu_norm=norm_of(launches),
        tolerance=before.tolerance if before is not None else None,
        xfail_perf=before.xfail_perf if before is not None else "",
        bounds=before.bounds if before is not None else {},
    )


def _of_median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.median_high(known), 2) if known else None


def phases_of(launches: Sequence[LaunchRecord]) -> dict[str, float]:
    """Name of each phase of a body (``rank.phase``) -> its seconds, the median over launches."""
    found: dict[str, list[float]] = {}
    for launch in launches:
        for m in launch.measurements:
            if m.name.startswith(PHASE) and m.value is not None:
                found.setdefault(m.key.removeprefix(PHASE), []).append(m.value)
    return {name: statistics.median(values) for name, values in found.items()}


def norm_of(launches: Sequence[LaunchRecord]) -> GpuReport | None:
    """Frequencies, limits and throttling of each launch's slowest GPU, medians over launches; None if not recorded."""
    watched = [launch.gpu_reports for launch in launches if launch.gpu_reports]
    if not watched:
        return None
    names = sorted({name for gpus in watched for gpu in gpus for name in gpu.held})
    held = {name: statistics.median(max(gpu.held.get(name, 0.0) for gpu in gpus) for gpus in watched) for name in names}

    def slowest(of: Callable[[GpuReport], float | None]) -> float | None:
        """The smallest value among a launch's GPUs; of these the median over launches, with four digits."""
        middle = median(min((v for v in map(of, gpus) if v is not None), default=None) for gpus in watched)
        return None if middle is None else float(f"{middle:.4g}")

    return GpuReport(
        sm_mhz=slowest(lambda gpu: gpu.sm_mhz),
        memory_mhz=slowest(lambda gpu: gpu.memory_mhz),
        power_limit_w=slowest(lambda gpu: gpu.power_limit_w),
        sm_limit_mhz=slowest(lambda gpu: gpu.sm_limit_mhz),
        held={name: round(share, 2) for name, share in held.items() if share >= 0.01},
        by_mps=any(gpu.by_mps for gpus in watched for gpu in gpus),
        host_cpu=next((gpu.host_cpu for gpus in watched for gpu in gpus if gpu.host_cpu), ""),
    )


def stored_samples(found: Sequence[Sample]) -> list[Sample]:
    """What a baseline keeps of a metric, one sample per launch."""
    first = found[0]
    kind = METRIC_KINDS[first.better]
    spreads = [m.spread or Spread() for m in found]
    values = [m.value for m in found]
    kept = first.values if kind.repeats_exactly else list(most_of_ranks(found)) if kind.is_memory else []
    series = [kept] * len(found)
    if kind.is_curve:
        steps = min(len(m.values) for m in found)
        if UNTIL_CHANGED in first.facts:
            steps = golden_curve.steps_to_move(first.values[:steps])
        series = [list(map(golden_curve.round_digits, m.values[:steps])) for m in found]
        values = [m[-1] for m in series]
    elif kind.repeats_exactly:  # whole, and an integer where it is one; of others four significant digits are kept
        values = [v if v is None or not float(v).is_integer() else int(v) for v in values]
    else:
        values = [None if v is None else _round(v) for v in values]
    over_ranks = [float(f"{v:.7g}") for v in spreads[0].over_ranks] if kind.is_of_training else []
    is_timed = kind.has_fast_side and all(
        m.value is not None and 0 < s.minimum <= m.value <= s.p95 for m, s in zip(found, spreads, strict=True)
    )  # a run record of others may say anything
    wholes, means = ([getattr(s, n) for s in spreads] for n in ("geometric_mean", "mean_but_slowest"))
    number = min(map(series_length, found)) if not (kind.is_curve or kind.is_exact) else 0
    stored = [
        Spread(
            n=number,
            minimum=_round(s.minimum) if is_timed else 0.0,
            p95=_round(s.p95) if is_timed else 0.0,
            geometric_mean=_round(s.geometric_mean) if s.geometric_mean and None not in wholes else None,
            mean_but_slowest=_round(s.mean_but_slowest) if s.mean_but_slowest and None not in means else None,
            over_ranks=over_ranks[: len(of_launch)] if kind.is_curve else over_ranks,
        )
        for s, of_launch in zip(spreads, series, strict=True)
    ]
    whole = golden_curve.common([m.whole for m in found]) if kind.is_curve else []
    companions, ranks = _companions(found), min(m.ranks for m in found)
    tensors = stored_tensors(found) if kind.shape == "tensors" else {}
    return [
        Sample(
            name=first.name,
            unit=first.unit,
            better=first.better,
            at=first.at,
            identity=first.identity,
            value=value,
            values=of_launch,
            whole=whole,
            whole_length=first.whole_length if whole else 0,
            tensors=tensors,
            options=first.options if all(m.options == first.options for m in found) else {},
            companions=companions,
            spread=None if spread == Spread() else spread,
            reduce=first.reduce,
            ranks=ranks,
        )
        for value, of_launch, spread in zip(values, series, stored, strict=True)
    ]


def _companions(measurements: Sequence[Sample]) -> dict[str, float]:
    names = measurements[0].companions
    found = {name: statistics.median(m.companions.get(name, 0.0) for m in measurements) for name in names}
    seconds = [m.companions.get(CPU_S, 0.0) for m in measurements]
    if (
        HOST_S not in names and len(seconds) >= FEWEST_TO_SPREAD and min(seconds) > 0
    ):  # else it says nothing of the timing
        found[CPU_SPREAD] = statistics.stdev(map(math.log, seconds))
    return {name: _round(value) for name, value in found.items()}


def _round(value: float) -> float:
    return float(f"{value:.4g}")


FEWEST_LAUNCHES = 5
"""Fewest launches of a noisy metric: with fewer the noise is a guess, and verdicts are *inconclusive* or low power."""

FEWEST_EXACT = 2  # launches of what does not scatter: they show whether it repeats

NOISE_CONFIDENCE = 0.8  # probability with which the noise is below its estimate


def fewest_launches(terms: Terms, launches: Sequence[LaunchRecord]) -> int:
    """Fewest launches that make a baseline of these metrics, whatever their noise: fewer if nothing scatters."""
    scatters = any(m.is_noisy for found in _judged(terms, launches).values() for m in found)
    return FEWEST_LAUNCHES if scatters else FEWEST_EXACT


def are_enough(terms: Terms, launches: Sequence[LaunchRecord], entry: BaselineEntry | None = None) -> bool:
    """Whether these launches make a baseline that more of them would not improve."""
    if len(launches) < fewest_launches(terms, launches):
        return False
    judged = _judged(terms, launches)
    noise: dict[str, float] = {}
    for key, found in judged.items():
        kind = METRIC_KINDS[found[0].better]
        if kind.needs_few_launches:
            continue
        values = [m.value for m in found if m.value is not None]
        if not kind.is_of_training and len(values) == len(found) > 1 and min(values) > 0:
            noise[key] = statistics.stdev(fast_logs(found))
        elif any(m.value != found[0].value or m.values != found[0].values for m in found):
            return False  # chance has a part in it, and nothing but launches can tell how large that is
    typical, accepted = typical_of_siblings(noise), accepted_changes(terms, launches, entry)
    return all(
        explained_by_noise(max(sigma, typical.get(judged[key][0].name, 0.0)), len(judged[key]))
        <= math.log1p(accepted[key])
        for key, sigma in noise.items()
    )


def explained_by_noise(sigma: float, launches: int) -> float:
    """Largest change that noise explains in a later run, from ``sigma`` of the logarithms of stored launches."""
    df = launches - 1
    largest = sigma * math.sqrt(df / chi_square_quantile(1 - NOISE_CONFIDENCE, df))
    return noise_limit(largest, launches, RUN_LAUNCHES, BASELINE_ERROR_RATE, shift=SHIFT)


def _judged(terms: Terms, launches: Sequence[LaunchRecord]) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for launch in launches:
        for measurement in launch.measurements:
            if measurement.is_judged and terms.wants(measurement.name):
                found.setdefault(measurement.key, []).append(measurement)
    return found


_TIME_ALL = "time what runs on the current stream, or record the host's time with rank.record"
_AT_LEAST_TWO = "measure at least two launches; for a derived number give judge a function and of=, or several values"


def only_judges(mode: str | None, entry: BaselineEntry | None) -> bool:
    """Whether an update in this mode only compares a case, given its stored baseline.

    Mode ``new`` adds to a baseline what it lacks.
    """
    return (mode == "new" and entry is not None) or (mode == "failed" and entry is None)


def what_it_lacks(entry: BaselineEntry, case: Case, launches: Sequence[LaunchRecord]) -> list[LaunchRecord]:
    """The launches with only what can be stored and is not in the baseline; empty if it has everything.

    An exact number of one launch is comparable already, one that scatters is not. Nothing is added to a baseline of
    another workload, of other software, or of another tool: its parts would be of different things.
    """
    if entry.workload != case.workload or version_changes(entry.software, launches[0].software):
        return []
    there = {key for key, metric in entry.metrics.items() if len(metric) > 1 or not metric[0].is_noisy}
    rest = [
        replace(
            launch,
            measurements=[m for m in launch.measurements if m.is_judged and m.key not in there],
            fingerprints={key: f for key, f in launch.fingerprints.items() if key not in entry.fingerprints},
        )
        for launch in launches
    ]
    return rest if any(launch.measurements or launch.fingerprints for launch in rest) else []


def is_wanted(mode: str | None, verdicts: Sequence[Finding], *, is_new: bool) -> bool:
    """Whether an update in this mode rewrites a baseline with these verdicts.

    ``all``: always; ``new``: if there is none; ``failed``: if a metric regressed; ``changed``: if any metric changed
    either way, cannot be compared, or has no baseline.
    """
    rows = [v.row for v in verdicts if v.is_judged]
    match mode:
        case "all":
            return True
        case "new":
            return is_new
        case "failed":
            return any(row.fails for row in rows)
        case _:
            return is_new or any(row.updates for row in rows)


def judged_by_bounds_alone(verdicts: Sequence[Finding]) -> bool:
    """Whether all that was judged is info metrics with bounds, which are never stored."""
    judged = [v for v in verdicts if v.is_judged]
    return bool(judged) and not any(METRIC_KINDS[v.better].is_judged for v in judged)


def why_not_stored(launches: Sequence[LaunchRecord], verdicts: Sequence[Finding]) -> str:
    """Why an update refuses what was measured, or "". Accepting a number does not change its bound."""
    beyond = next((f"{v.metric} violates a bound: {v.reason}" for v in verdicts if v.code == "bound"), "")
    return beyond or why_not_storable(launches)


def why_not_storable(launches: Sequence[LaunchRecord], *, fewest: int = 2) -> str:
    """What these launches lack to be a baseline, or "".

    A baseline needs at least one judged metric, and a value for each in every launch; a timer that timed nothing has
    none. Some seeds of a training may miss the goal: that counts as a number of steps above all others. With fewer
    launches than ``fewest``, noisy metrics are refused.
    """
    judged = [m for launch in launches for m in launch.measurements if m.is_judged]
    if all(m.name in UNASKED for m in judged):
        return "nothing was measured that can be judged"
    reached = {m.name for m in judged if m.value is not None}
    lacking = [
        m.key for m in judged if m.value is None and not (METRIC_KINDS[m.better].counts_steps and m.name in reached)
    ]
    if impossible := impossible_value(launches):
        return impossible
    if idle := next(((m.key, why) for m in judged if (why := why_nothing_was_timed(m))), None):
        return f"{idle[0]}: {idle[1]}; {_TIME_ALL}"
    if not lacking:
        single = next((m.key for m in judged if m.is_noisy and len(launches) < fewest), "")
        return f"{single} has one value, so its noise is unknown: {_AT_LEAST_TWO}" if single else ""
    missed = f"{lacking.count(lacking[0])} of {len(launches)} launches"
    return f"{lacking[0]} has no value in {missed}: a baseline needs one in each"


def impossible_value(launches: Sequence[LaunchRecord]) -> str:
    """The metric whose value cannot have been measured, and why, or "".

    A timing that the plugin took itself may be 0, and so may numbers computed from a timeline.
    """
    for m in (m for launch in launches if not launch.events for m in launch.measurements if m.is_judged):
        is_own_clock = bool(m.companions) or m.is_phase
        if m.value is not None and (m.value < 0 or not is_own_clock) and (why := why_impossible(m.value, m.unit)):
            return f"{m.key}: {why}"
    return ""


def few_launches(metrics: Mapping[str, Sequence[Sample]]) -> dict[str, int]:
    """Metrics that may scatter and have fewer than :data:`FEWEST_LAUNCHES` values -> how many they have."""
    return {
        key: len(metric)
        for key, metric in metrics.items()
        if not METRIC_KINDS[metric[0].better].needs_few_launches and len(metric) < FEWEST_LAUNCHES
    }


LARGEST_MDE = 10.0  # as a fraction: larger slowdowns need no number

POOR = 0.05  # with more noise than this there is advice: it hides slowdowns of the usual tolerance


def sensitivity_of(metrics: Mapping[str, Sequence[Sample]], tolerances: Mapping[str, float]) -> Finding | None:
    """How good a baseline is, by the timing of its case with the largest MDE.

    ``mde`` is that of a comparison with the stored numbers alone, after the most launches; ``paired_mde`` that of
    interleaved A/B with the baseline commit, after the most pairs; ``noise`` the standard deviation of the logarithm
    between launches. None if no timing has two launches.
    """
    typical = typical_noise(metrics)
    found: list[tuple[float, str, float]] = []
    for key, tolerance in tolerances.items():
        metric = metrics.get(key)
        if not metric or not (metric[0].is_noisy and not is_size(metric[0].unit)) or (own := noise_of(metric)) is None:
            continue
        noise = max(own, typical.get(metric_name(key), 0.0))
        known = sum(m.value is not None for m in metric)
        mde = smallest_detectable(noise, known, RUN_LAUNCHES, BASELINE_ERROR_RATE, shift=SHIFT, tolerance=tolerance)
        found.append((mde, key, noise))
    if not found:
        return None
    mde, key, noise = max(found)
    under = Circumstances(tolerance=tolerances[key], comparisons=1, looks=LOOKS, spending=SPENDING)
    paired = smallest_slowdown(noise * math.sqrt(ONE_AGAINST_TWO), under)
    facts: dict[str, Scalar] = {"noise": noise, "paired_mde": min(paired, LARGEST_MDE)}
    return Finding(metric=key, at=metrics[key][0].at, code="sensitivity", mde=min(mde, LARGEST_MDE), facts=facts)


def sensitivity_lines(found: Sequence[tuple[str, Finding]]) -> list[str]:
    """How good the baselines of some cases are, in a sentence, with advice if one of them is poor."""
    if not found:
        return []
    ordered = sorted(found, key=lambda one: one[1].mde or 0.0)
    (_, middle), (title, worst) = ordered[(len(ordered) - 1) // 2], ordered[-1]
    name, noise = f"{title} {metric_text(worst)}", f"noise {_percent(worst.facts['noise'])}"
    text = f"{name}: {noise}: this baseline alone detects slowdowns {_above(worst)}"
    if len(found) > 1:
        text = (
            f"noise {_percent(middle.facts['noise'])} (median of {len(found)} cases): baselines alone detect slowdowns "
            f"{_above(middle)}; worst, {name}: {noise}, {_above(worst)}"
        )
    advice = (
        "to detect smaller ones: a quieter machine (distbench doctor), or more iterations in the loop; record again"
    )
    return [text, advice] if float(worst.facts["noise"]) > POOR else [text]


def _above(one: Finding) -> str:
    return f"above {_percent(one.mde or 0.0)}, with A/B about {_percent(one.facts['paired_mde'])}"


def _percent(share: Scalar) -> str:
    share = float(share)
    return f"{100 * share:.2g} %" if share < 1 else f"{100 * share:.0f} %"
