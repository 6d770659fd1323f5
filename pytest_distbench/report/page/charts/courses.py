"""What a training's charts are made of: its series step by step, when each step was taken, and the target of a goal."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import median

from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import (
    EVALUATED,
    EVALUATION_ENDS,
    EVERY,
    PEAK_MEMORY,
    PHASE,
    Measurement,
    without,
)
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.page.chart import Point, points, short
from pytest_distbench.report.texts.words import point_text

MOST_POINTS = 300
"""Of a curve: a screen has not many more."""


def curves_of(launches: Sequence[LaunchRecord]) -> dict[str, list[tuple[str, list[Point]]]]:
    """Name -> its launches, each with a name of its own.

    What was evaluated stands for what the training computed under the same name, and all losses for the first ones.
    """
    found: dict[str, list[tuple[str, list[Point]]]] = {}
    evaluated = {m.name for launch in launches for m in launch.measurements if m.name.startswith(EVALUATED)}
    for launch in launches:
        for measured in launch.measurements:
            is_curve = measured.better in ("info", "curve") and len(measured.series) > 1
            is_beside = measured.name in (PEAK_MEMORY, EVALUATION_ENDS) or measured.name.startswith(PHASE)
            is_beside |= EVALUATED + measured.name in evaluated
            if is_curve and not is_beside:
                seed = f"seed {measured.at['seed']}" if "seed" in measured.at else f"launch {launch.index + 1}"
                every = int(measured.facts.get(EVERY, 1))
                found.setdefault(_name_over_seeds(measured), []).append((seed, _thin_out(measured.series, every)))
    if "loss" in found:
        found.pop("loss_curve", None)
    return found


def median_curve(curves: Sequence[Sequence[Point]]) -> list[Point]:
    """At each step the median of those that came so far."""
    by_x: dict[float, list[float]] = {}
    for x, y in (point for curve in curves for point in curve):
        by_x.setdefault(x, []).append(y)
    return [(x, short(median(values))) for x, values in sorted(by_x.items())]


def over_time(result: CaseResult, curve: Sequence[Point]) -> list[Point]:
    """A curve by step at the moments of its steps, in seconds from the first on; empty where nobody knows these.

    They are between the ends of evaluations, which a goal knows; else at the median step.
    """
    measured = [m for launch in result.launches for m in launch.measurements]
    ends = _ends([m for m in measured if m.name == EVALUATION_ENDS])
    steps = [m.value for m in measured if m.name == "step_time" and m.value]
    if not ends and not steps:
        return []
    known = [(0.0, 0.0), *(ends or [(1.0, median(steps))])]
    return points((_at(known, step), value) for step, value in curve)


def _ends(measured: Sequence[Measurement]) -> list[Point]:
    """When each evaluation ended: by medians of the times from one to the next, so that none ended before another."""
    lasted: dict[int, list[float]] = {}
    for m in measured:
        for i, (began, ended) in enumerate(pairwise([0.0, *m.series]), 1):
            lasted.setdefault(i * int(m.facts.get(EVERY, 1)), []).append(ended - began)
    medians = [median(lasted[step]) for step in sorted(lasted)]
    return [*zip(map(float, sorted(lasted)), accumulate(medians), strict=True)]


def _at(known: Sequence[Point], step: float) -> float:
    """When a step was taken: on the line between the two known ones about it, or on the last such line."""
    i = min(max(1, bisect_left(known, (step, 0.0))), len(known) - 1)
    (before, began), (after, ended) = known[i - 1], known[i]
    return began + (ended - began) * (step - before) / (after - before)


def unit_of(results: Sequence[CaseResult], name: str) -> str:
    """Of the series of that name."""
    return next((m.unit for m in _measurements(results) if _name_over_seeds(m) == name), "")


def target_of(results: Sequence[CaseResult], name: str) -> float | None:
    """What a goal of that name was to reach."""
    for measured in _measurements(results):
        target = measured.identity.get("target")
        if measured.name == f"steps_to_{name}" and isinstance(target, int | float):
            return float(target)
    return None


def _measurements(results: Sequence[CaseResult]) -> list[Measurement]:
    return [m for result in results for launch in result.launches for m in launch.measurements]


def _name_over_seeds(measured: Measurement) -> str:
    return point_text(measured.name.removeprefix(EVALUATED), without(measured.at, "seed"))


def _thin_out(series: Sequence[float], every: int) -> list[Point]:
    """Of a series with a value every so many steps."""
    stride = -(-len(series) // MOST_POINTS)
    return points(((i + 1) * every, series[i]) for i in range(0, len(series), stride))
