"""Charts of one case: its sweep, what it learns, where its steps go, its links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from pytest_distbench.judging.links import Link
from pytest_distbench.records.breakdown import UNACCOUNTED
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import EVALUATED, EVERY, PEAK_MEMORY, PHASE, Measurement
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.page.chart import Axis, Bars, Chart, Heat, Lines, Point, Series, points, short
from pytest_distbench.report.tables.links import link_points
from pytest_distbench.report.tables.phases import PHASES, whole_of
from pytest_distbench.report.tables.sweep import SweepPoint, sweep_points
from pytest_distbench.report.texts.words import point_text, words_for
from pytest_distbench.units import GIGABYTE

MOST_POINTS = 300
"""Of a curve: a screen has not many more."""

_MESSAGE = Axis(name="message size", unit="B", scale="log2")


def bandwidth(result: CaseResult) -> Iterator[Chart]:
    """Bus bandwidth against message size; algorithm bandwidth where a collective has no factor."""
    sweeps = _sweeps(result)
    if not any(len(found) > 1 for found in sweeps.values()):
        return
    has_factor = all(point.busbw is not None for found in sweeps.values() for point in found)
    series = []
    for name, found in sweeps.items():
        rates = [(point.busbw if has_factor else point.algbw) or 0.0 for point in found]
        series.append(Series(name=name or "this run", points=_rates(found, rates)))
        before = [
            rate * point.time_s / point.time.baseline if point.time.baseline else None
            for point, rate in zip(found, rates, strict=True)
        ]
        if any(before):
            called = f"{name} {words_for(result).name}".strip()
            series.append(Series(name=called, points=_rates(found, before), look="reference"))
    title = "Bus bandwidth by message size" if has_factor else "Bandwidth by message size"
    yield Lines(title=title, x=_MESSAGE, y=Axis(name="bandwidth", unit="B/s", scale="log"), series=series)


def _rates(found: Sequence[SweepPoint], rates: Sequence[float | None]) -> list[Point]:
    pairs = zip(found, rates, strict=True)
    return points((point.message_bytes, rate * GIGABYTE) for point, rate in pairs if rate)


def change_by_size(result: CaseResult) -> Iterator[Chart]:
    """The time of each message size as a share of the baseline's: a loss that no axis of decades shows."""
    sweeps = _sweeps(result)
    series: list[Series] = []
    allowed: list[tuple[float, float, float]] = []
    for name, found in sweeps.items():
        judged = [(p.message_bytes, p.time.ratio, p.time.limit) for p in found if p.time.ratio is not None]
        if len(judged) > 1:
            series.append(Series(name=name or "this run", points=points((size, ratio) for size, ratio, _ in judged)))
            limits = [(size, limit) for size, _, limit in judged if limit is not None]
            allowed = allowed or [(float(size), short(1 / (1 + limit)), short(1 + limit)) for size, limit in limits]
    if series:
        name = words_for(result).name
        y = Axis(name=f"time, % of the {name}", unit="%")
        yield Lines(title=f"Time as % of the {name}", x=_MESSAGE, y=y, series=series, allowed=allowed)


def _sweeps(result: CaseResult) -> dict[str, list[SweepPoint]]:
    """By what tells the points of one size apart."""
    sweeps: dict[str, list[SweepPoint]] = {}
    for point in sweep_points(result):
        others = (str(value) for axis, value in point.time.at.items() if axis != "message_bytes")
        sweeps.setdefault(" ".join(others), []).append(point)
    return sweeps


def curves(result: CaseResult) -> Iterator[Chart]:
    """Series that the record keeps, step by step: every launch or seed thin, their median thick.

    Where the launches know how long a step takes, against time, too.
    """
    found = _curves(result.launches)
    before = _curves(result.reference.launches)
    for name, here in found.items():
        drawn = [*_thick(here, ""), *_thick(before.get(name, []), f"{words_for(result).name} ")]
        y = Axis(name=name, unit=_unit(result, name))
        target = _target(result, name)
        steps = Axis(name="step")
        yield Lines(title=f"{name} by step", x=steps, y=y, series=drawn, target=target)
        step_s = _median_of(result.launches, "step_time")
        if step_s:
            scaled = [
                Series(name=s.name, look=s.look, points=[(short(x * step_s), value) for x, value in s.points])
                for s in drawn
                if s.look != "reference"
            ]
            time = Axis(name="time at the median step", unit="s")
            yield Lines(title=f"{name} by time", x=time, y=y, series=scaled, target=target)


def _curves(launches: Sequence[LaunchRecord]) -> dict[str, list[tuple[str, list[Point]]]]:
    """Name -> its launches, each with a name of its own; the first losses are left out where all are there."""
    found: dict[str, list[tuple[str, list[Point]]]] = {}
    for launch in launches:
        for measured in launch.measurements:
            is_curve = measured.better in ("info", "curve") and len(measured.series) > 1
            if is_curve and measured.name != PEAK_MEMORY and not measured.name.startswith(PHASE):
                seed = f"seed {measured.at['seed']}" if "seed" in measured.at else f"launch {launch.index + 1}"
                every = int(measured.facts.get(EVERY, 1))
                found.setdefault(_name_over_seeds(measured), []).append((seed, _thin_out(measured.series, every)))
    if "loss" in found:
        found.pop("loss_curve", None)
    return found


def _unit(result: CaseResult, name: str) -> str:
    found = (m.unit for launch in result.launches for m in launch.measurements if _name_over_seeds(m) == name)
    return next(found, "")


def _name_over_seeds(measured: Measurement) -> str:
    at = {axis: value for axis, value in measured.at.items() if axis != "seed"}
    return point_text(measured.name.removeprefix(EVALUATED), at)


def _thin_out(series: Sequence[float], every: int) -> list[Point]:
    """Of a series with a value every so many steps."""
    stride = -(-len(series) // MOST_POINTS)
    return points(((i + 1) * every, series[i]) for i in range(0, len(series), stride))


def _thick(curves: Sequence[tuple[str, list[Point]]], whose: str) -> list[Series]:
    """The launches of one side, and their median; of the side before only that, dotted."""
    if not curves:
        return []
    by_x: dict[float, list[float]] = {}
    for x, y in (point for _, drawn in curves for point in drawn):
        by_x.setdefault(x, []).append(y)
    middle = [(x, short(median(values))) for x, values in sorted(by_x.items())]
    if whose:
        return [Series(name=f"{whose}median", points=middle, look="reference")]
    if len(curves) == 1:
        return [Series(name=curves[0][0], points=middle)]
    return [
        *(Series(name=name, points=drawn, look="thin") for name, drawn in curves),
        Series(name="median", points=middle),
    ]


def _target(result: CaseResult, name: str) -> float | None:
    """What a goal of that name was to reach."""
    for measured in (m for launch in result.launches for m in launch.measurements):
        target = measured.identity.get("target")
        if measured.name == f"steps_to_{name}" and isinstance(target, int | float):
            return float(target)
    return None


def _median_of(launches: Sequence[LaunchRecord], name: str) -> float | None:
    values = [m.value for launch in launches for m in launch.measurements if m.name == name and m.value is not None]
    return median(values) if values else None


def epochs(result: CaseResult) -> Iterator[Chart]:
    """What was recorded at each epoch: an accuracy, a BLEU score."""
    found: dict[str, dict[str, list[Point]]] = {}
    for launch in result.launches:
        for measured in launch.measurements:
            if measured.at.keys() - {"seed"} == {"epoch"} and measured.value is not None:
                seed = f"seed {measured.at['seed']}" if "seed" in measured.at else f"launch {launch.index + 1}"
                epoch = float(measured.at["epoch"])
                found.setdefault(measured.name, {}).setdefault(seed, []).append((epoch, short(measured.value)))
    for name, by_seed in found.items():
        drawn = _thick([(seed, sorted(drawn)) for seed, drawn in by_seed.items()], "")
        yield Lines(
            title=f"{name} by epoch",
            x=Axis(name="epoch"),
            y=Axis(name=name),
            series=drawn,
            target=_target(result, name),
        )


def phases(result: CaseResult) -> Iterator[Chart]:
    """Where a step of each rank goes: its outermost phases, and what is in none."""
    loops: dict[str, dict[str, Sequence[float]]] = {}
    for row in PHASES.rows([result]):
        if (row.kind == "phase" and len(row.path) == 1) or row.kind == UNACCOUNTED:
            loops.setdefault(row.loop, {})[row.path[0] if row.path else UNACCOUNTED] = row.times_s
    for loop, parts in loops.items():
        rows = [
            (f"rank {rank}", [short(max(0.0, times_s[rank])) for times_s in parts.values()])
            for rank in range(min(map(len, parts.values())))
        ]
        yield Bars(title=f"Where {whole_of(loop)} goes, by rank", unit="s", parts=[*parts], rows=rows)


def links(result: CaseResult) -> Iterator[Chart]:
    """What each link takes and carries, as matrices."""
    found = list(link_points(result))
    ranks = 1 + max((max(point.link) for point in found), default=0)
    latencies = {point.link: point.latency_s for point in found}
    rates = {p.link: None if p.bandwidth is None else p.bandwidth * GIGABYTE for p in found}
    for title, unit, values in (("Latency of links", "s", latencies), ("Bandwidth of links", "B/s", rates)):
        if any(value is not None for value in values.values()):
            cells = [[values.get(Link(source, target)) for target in range(ranks)] for source in range(ranks)]
            labels = [f"rank {rank}" for rank in range(ranks)]
            yield Heat(title=title, unit=unit, down="from", across="to", labels=labels, cells=cells)
