"""From the launches of a case to the entry that stores what they measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from pytest_distbench.judging import golden_curve
from pytest_distbench.judging.fingerprint_rule import agree
from pytest_distbench.judging.gpus import norm_of
from pytest_distbench.judging.losses import series_length
from pytest_distbench.judging.memory_rule import most_of_ranks
from pytest_distbench.judging.whole_rule import whole
from pytest_distbench.records.baseline import BaselineEntry, BaselineMetric
from pytest_distbench.records.case import Case
from pytest_distbench.records.fingerprint import Fingerprint
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import CPU_S, CPU_SPREAD, HOST_S, PHASE, UNTIL_MOVED, Measurement, Scalar, Summary
from pytest_distbench.records.record import Number, replace

FEWEST_TO_SPREAD = 3
"""Launches; of fewer nobody knows how much they differ."""


def make_entry(
    case: Case, launches: Sequence[LaunchRecord], software: dict[str, str], *, before: BaselineEntry | None = None
) -> BaselineEntry:
    """The entry that stores what ``launches`` measured, without info metrics; what ``before`` has by hand is kept."""
    kept = before.metrics if before is not None else {}
    metrics: dict[str, BaselineMetric] = {}
    measured: dict[str, list[Measurement]] = {}
    for launch in launches:
        for measurement in launch.measurements:
            measured.setdefault(measurement.key, []).append(measurement)
    for key, found in measured.items():
        if found[0].is_judged:
            metrics[key] = stored_metric(found, tolerance=kept[key].tolerance if key in kept else None)
    return BaselineEntry(
        workload=case.workload,
        conditions=case.conditions,
        test_id=case.id,
        params=case.params,
        software=software,
        metrics=metrics,
        foreign_cores=_of_median(launch.foreign_cores for launch in launches),
        foreign_wanted=_of_median(launch.foreign_wanted for launch in launches),
        crowding=_of_median(launch.crowding for launch in launches),
        fingerprints=fingerprints_of(launches),
        phases={name: _round(seconds) for name, seconds in phases_of(launches).items()},
        launch_s=_round(statistics.median(launch.wall_s for launch in launches)),
        gpu_norm=norm_of(launches),
        tolerance=before.tolerance if before is not None else None,
        xfail_perf=before.xfail_perf if before is not None else "",
        bounds=before.bounds if before is not None else {},
    )


def completed_entry(entry: BaselineEntry, case: Case, lacking: Sequence[LaunchRecord]) -> BaselineEntry:
    """The entry with what it lacked, and nothing of what it has replaced."""
    more = make_entry(case, lacking, entry.software, before=entry)
    return replace(entry, metrics=entry.metrics | more.metrics, fingerprints=entry.fingerprints | more.fingerprints)


def _of_median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.median_high(known), 2) if known else None


def fingerprints_of(launches: Sequence[LaunchRecord]) -> dict[str, Fingerprint]:
    """The fingerprints on which the launches agree, by key; one that differs between them says so."""
    found: dict[str, list[Fingerprint]] = {}
    for launch in launches:
        for key, fingerprint in launch.fingerprints.items():
            found.setdefault(key, []).append(fingerprint)
    return {key: agree(fingerprints) for key, fingerprints in found.items()}


def phases_of(launches: Sequence[LaunchRecord]) -> dict[str, float]:
    """Seconds in each phase that bodies named (``rank.phase``): the median over launches."""
    found: dict[str, list[float]] = {}
    for launch in launches:
        for m in launch.measurements:
            if m.name.startswith(PHASE) and m.value is not None:
                found.setdefault(m.key.removeprefix(PHASE), []).append(m.value)
    return {name: statistics.median(values) for name, values in found.items()}


def stored_metric(found: Sequence[Measurement], *, tolerance: float | None) -> BaselineMetric:
    """What is stored of one metric's measurements, one per launch."""
    kind = METRIC_KINDS[found[0].better]
    summaries = [m.summary for m in found if m.summary is not None and _encloses(m.summary, m.value)]
    is_timed = kind.has_fast_side and len(summaries) == len(found)
    wholes = [whole(m) for m in found]
    made = BaselineMetric(
        better=found[0].better,
        unit=found[0].unit,
        launches=[_stored_value(m.value, exact=kind.repeats_exactly) for m in found],
        minimum=[_round(s.minimum) for s in summaries] if is_timed else [],
        p95=[_round(s.p95) for s in summaries] if is_timed else [],
        whole=[_round(w) for w in wholes if w is not None] if None not in wholes else [],
        tolerance=None if kind.rule == "exact" else tolerance,
        identity=found[0].identity,
        companions=_companions(found),
        series=_series(found, kind.rule),
        values=min(map(series_length, found)) if kind.rule not in ("curve", "exact") else 0,
        scatter=[_digits(v) for v in found[0].scatter] if kind.is_of_training else [],
        ranks=min(m.ranks for m in found),
        reduce=found[0].reduce,
    )
    return _with_curve(made, [m.series for m in found], found[0].facts) if kind.rule == "curve" else made


def _series(found: Sequence[Measurement], rule: str) -> list[Number]:
    """What is kept of all values, to tell where another launch left them."""
    match rule:
        case "exact":
            return found[0].series
        case "memory":
            return list(most_of_ranks(found))
        case _:
            return found[0].taken_from


def _encloses(summary: Summary, value: float | None) -> bool:
    """Whether the ends of a series can be stored beside its value: a run record of others may say anything."""
    return value is not None and 0 < summary.minimum <= value <= summary.p95


def _with_curve(made: BaselineMetric, series: Sequence[Sequence[float]], facts: Mapping[str, Scalar]) -> BaselineMetric:
    """The curve of the first launch, and how far the others leave it; of a training that is not seeded, no curve."""
    steps = min(map(len, series))
    if UNTIL_MOVED in facts:
        steps = golden_curve.steps_to_move(series[0][:steps])
    made = replace(made, scatter=made.scatter[:steps])
    golden = [golden_curve.round_digits(v) for v in series[0][:steps]]
    spread = max(max(golden_curve.deviations(golden, values[:steps])) for values in series)
    made = replace(made, launches=[golden_curve.round_digits(values[-1]) for values in series], spread=spread)
    unseeded = golden_curve.disagreement([values[:steps] for values in series])
    return replace(made, curve=golden) if unseeded is None else replace(made, unseeded_at=unseeded.starts_at)


def _companions(measurements: Sequence[Measurement]) -> dict[str, float]:
    names = measurements[0].companions
    found = {name: statistics.median(m.companions.get(name, 0.0) for m in measurements) for name in names}
    if (spread := _cpu_spread(measurements)) is not None:
        found[CPU_SPREAD] = spread
    return {name: _round(value) for name, value in found.items()}


def _cpu_spread(measurements: Sequence[Measurement]) -> float | None:
    """How much the CPU time differs between launches; None where it says nothing of the clock."""
    seconds = [m.companions.get(CPU_S, 0.0) for m in measurements]
    if HOST_S in measurements[0].companions or len(seconds) < FEWEST_TO_SPREAD or min(seconds) <= 0:
        return None
    return statistics.stdev(map(math.log, seconds))


def _stored_value(value: float | None, *, exact: bool) -> float | None:
    """Four significant digits of a measured value; an exact one whole, and as an integer where it is one."""
    if value is None:
        return None
    if exact:
        return int(value) if isinstance(value, int) or value.is_integer() else value
    return _round(value)


def _digits(value: float) -> float:
    return float(f"{value:.7g}")


def _round(value: float) -> float:
    return float(f"{value:.4g}")
