"""From the launches of a case and its baseline entry to one judgement per metric. The rule itself is in ``verdict``."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from pytest_distbench import environment
from pytest_distbench.records import BaselineEntry, LaunchRecord, Measurement, replaced
from pytest_distbench.request import MeasureRequest
from pytest_distbench.verdict import Judgement, Rule, judge, not_measured, typical_noise

_SAME_SOFTWARE = ("python", "torch", "numpy", "cpu_capability", "threads", "cuda", "nccl")


def judge_launches(
    request: MeasureRequest, launches: Sequence[LaunchRecord], entry: BaselineEntry | None, *, comparisons: int
) -> list[Judgement]:
    """Judge what the launches measured, and name what the baseline has and they did not measure.

    Args:
        request: tolerances, metrics, and the most launches there may be.
        launches: that passed, at least one.
        entry: of the baseline; None where there is none.
        comparisons: noisy comparisons in the whole run, which share the error rate.
    """
    stale = entry is not None and entry.workload != request.case.workload
    stored = entry.metrics if entry is not None and not stale else {}
    noise = typical_noise(stored)
    same = entry is not None and _same_software(entry.software, launches[0].software)
    judgements = []
    for key, measurements in _by_metric(launches).items():
        if request.metrics is not None and measurements[0].name not in request.metrics:
            measurements = [_as_info(m) for m in measurements]
        rule = Rule(
            tolerance=_tolerance_of(request, measurements[0].name),
            comparisons=comparisons,
            max_launches=request.max_launches,
            noise_floor=noise.get(measurements[0].name, 0.0),
            same_software=same,
            busier_cores=_busier(entry, launches),
            cores=environment.cores(),
        )
        judgement = judge(measurements, stored.get(key), rule)
        if stale and judgement.verdict.kind == "missing":
            reason = "the workload's definition changed since the baseline"
            judgement = Judgement(replaced(judgement.verdict, kind="incomparable", reason=reason), is_open=False)
        judgements.append(judgement)
    unseen = [key for key in stored if key not in {j.verdict.metric for j in judgements}]
    return judgements + [Judgement(not_measured(key, stored[key]), is_open=False) for key in unseen]


def _by_metric(launches: Sequence[LaunchRecord]) -> dict[str, list[Measurement]]:
    """Metric key -> its measurement in each launch; one that a full launch lacks counts as without value."""
    found: dict[str, list[Measurement]] = {}
    for launch in launches:
        for measurement in launch.measurements:
            found.setdefault(measurement.key, []).append(measurement)
    full = sum(not launch.only for launch in launches)
    for key, measurements in found.items():
        found[key] = measurements + [replaced(measurements[0], value=None)] * (full - len(measurements))
    return found


def _tolerance_of(request: MeasureRequest, name: str) -> float:
    if isinstance(request.tolerance, Mapping):
        return request.tolerance.get(name, request.default_tolerance)
    return request.tolerance


def _busier(entry: BaselineEntry | None, launches: Sequence[LaunchRecord]) -> float:
    """How many more cores other processes used in the median launch than when the baseline was taken."""
    now = [f.foreign_cores for f in launches if f.foreign_cores is not None]
    if entry is None or entry.foreign_cores is None or not now:
        return 0.0
    return statistics.median(now) - entry.foreign_cores


def _same_software(stored: Mapping[str, str], current: Mapping[str, str]) -> bool:
    return all(stored.get(name) == current.get(name) for name in _SAME_SOFTWARE)


def _as_info(measurement: Measurement) -> Measurement:
    return replaced(measurement, better="info")
