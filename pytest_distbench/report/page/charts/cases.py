"""Charts of one case: its sweep, what it learns, where its steps go, its links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_distbench.judging.links import Link
from pytest_distbench.records.breakdown import UNACCOUNTED
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.page.chart import Axis, Bars, Chart, Heat, Lines, Point, Series, points, short
from pytest_distbench.report.page.charts.courses import curves_of, median_curve, target_of, unit_of
from pytest_distbench.report.tables.links import link_points
from pytest_distbench.report.tables.phases import PHASES, whole_of
from pytest_distbench.report.tables.sweep import SweepPoint, sweep_points
from pytest_distbench.report.texts.words import words_for
from pytest_distbench.units import GIGABYTE

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
    """Series that the record keeps, step by step: every launch or seed thin, their median thick."""
    before = curves_of(result.reference.launches)
    for name, here in curves_of(result.launches).items():
        drawn = [*_thick(here, ""), *_thick(before.get(name, []), f"{words_for(result).name} ")]
        y = Axis(name=name, unit=unit_of([result], name))
        yield Lines(title=f"{name} by step", x=Axis(name="step"), y=y, series=drawn, target=target_of([result], name))


def _thick(curves: Sequence[tuple[str, list[Point]]], whose: str) -> list[Series]:
    """The launches of one side, and their median; of the side before only that, dotted."""
    if not curves:
        return []
    middle = median_curve([drawn for _, drawn in curves])
    if whose:
        return [Series(name=f"{whose}median", points=middle, look="reference")]
    if len(curves) == 1:
        return [Series(name=curves[0][0], points=middle)]
    return [
        *(Series(name=name, points=drawn, look="thin") for name, drawn in curves),
        Series(name="median", points=middle),
    ]


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
            target=target_of([result], name),
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


_FEWEST_LOOKS = 4
"""A launch of fewer was over in half a second: it has no course."""
_MOST_LAUNCHES = 3


def utilisation(result: CaseResult) -> Iterator[Chart]:
    """How busy CPUs and GPUs were over time, of the first launches."""
    series = []
    for launch in result.launches[:_MOST_LAUNCHES]:
        courses = {"CPUs": launch.cpu_course, **{gpu.label: gpu.course for gpu in launch.gpu_witnesses}}
        series += [
            Series(name=f"{name}, launch {launch.index + 1}", points=points(course))
            for name, course in courses.items()
            if len(course) >= _FEWEST_LOOKS
        ]
    if series:
        x = Axis(name="time from the start of the launch", unit="s")
        yield Lines(title="Utilisation over time", x=x, y=Axis(name="busy", unit="%", from_zero=True), series=series)
