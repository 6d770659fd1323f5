"""Charts of workloads: of sweeps, phases and links below a case; of scaling, phases and cost above their tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from pytest_distbench.judging.links import Link
from pytest_distbench.records.environment import TERMS, Prices
from pytest_distbench.records.iteration import UNACCOUNTED
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.page import Axis, Bars, Chart, Heat, Lines, Point, Series, points, short
from pytest_distbench.report.page.charts import (
    curves_of,
    median_curve,
    over_time,
    target_of,
    unit_of,
    without_first_losses,
)
from pytest_distbench.units import GIGABYTE
from pytest_distbench.workloads.tables.collectives import SweepPoint, sweep_points
from pytest_distbench.workloads.tables.communication import link_points
from pytest_distbench.workloads.tables.cost import CostRow, cost_rows
from pytest_distbench.workloads.tables.phases import PHASES, whole_of
from pytest_distbench.workloads.tables.scaling import SCALING, ScalingRow, scaling_rows

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
            called = f"{name} baseline".strip()
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
        judged = [(p.message_bytes, p.time.ratio, p.time.threshold) for p in found if p.time.ratio is not None]
        if len(judged) > 1:
            series.append(Series(name=name or "this run", points=points((size, ratio) for size, ratio, _ in judged)))
            limits = [(size, limit) for size, _, limit in judged if limit is not None]
            allowed = allowed or [(float(size), short(1 / (1 + limit)), short(1 + limit)) for size, limit in limits]
    if series:
        y = Axis(name="time, % of the baseline", unit="%")
        yield Lines(title="Time as % of the baseline", x=_MESSAGE, y=y, series=series, allowed=allowed)


def _sweeps(result: CaseResult) -> dict[str, list[SweepPoint]]:
    """By what tells the points of one size apart."""
    sweeps: dict[str, list[SweepPoint]] = {}
    for point in sweep_points(result):
        others = (str(value) for axis, value in point.time.at.items() if axis != "message_bytes")
        sweeps.setdefault(" ".join(others), []).append(point)
    return sweeps


def phases_by_rank(result: CaseResult) -> Iterator[Chart]:
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
    """Latency and bandwidth of each link, from rank to rank."""
    found = list(link_points(result))
    ranks = 1 + max((max(point.link) for point in found), default=0)
    latencies = {point.link: point.latency_s for point in found}
    rates = {p.link: None if p.bandwidth is None else p.bandwidth * GIGABYTE for p in found}
    for title, unit, values in (("Latency of links", "s", latencies), ("Bandwidth of links", "B/s", rates)):
        if any(value is not None for value in values.values()):
            cells = [[values.get(Link(source, target)) for target in range(ranks)] for source in range(ranks)]
            labels = [f"rank {rank}" for rank in range(ranks)]
            yield Heat(title=title, unit=unit, down="from", across="to", labels=labels, cells=cells)


_WORKERS = Axis(name="workers", scale="log2")


def scaling(results: Sequence[CaseResult], prices: Prices | None = None) -> Iterator[Chart]:
    """Speed-up and efficiency by workers: a line for each test, dotted what is ideal, or what the baseline was."""
    del prices
    found: dict[str, list[ScalingRow]] = {}
    name_of = next(column for column in SCALING.columns if column.name == "test")
    for row in scaling_rows(results):
        if row.speedup is not None and row.communicates:
            found.setdefault(name_of.make_cell(row).text, []).append(row)
    if not found:
        return
    speedups = [
        Series(name=name, points=points((row.workers, row.speedup) for row in rows)) for name, rows in found.items()
    ]
    sizes = sorted({row.workers for rows in found.values() for row in rows})
    ideal = Series(name="ideal", points=points((size, size) for size in sizes), look="reference")
    speedup = Axis(name="speed-up", scale="log2")
    yield Lines(title="Speed-up over one worker", x=_WORKERS, y=speedup, series=[*speedups, ideal])
    shares = []
    for name, rows in found.items():
        shares.append(Series(name=name, points=points((row.workers, row.efficiency) for row in rows)))
        before = points((r.workers, r.verdict.baseline if r.verdict is not None else None) for r in rows)
        if before:
            shares.append(Series(name=f"{name}, baseline", points=before, look="reference"))
    efficiency = Axis(name="scaling efficiency", unit="%")
    yield Lines(title="Scaling efficiency", x=_WORKERS, y=efficiency, series=shares)


def phases_by_size(results: Sequence[CaseResult], prices: Prices | None = None) -> Iterator[Chart]:
    """Where a step goes by world size, of tests that ran at several: means over ranks."""
    del prices
    groups: dict[tuple[str, str], dict[int, dict[str, float]]] = {}
    for row in PHASES.rows(results):
        if (row.kind == "phase" and len(row.path) == 1) or row.kind == UNACCOUNTED:
            sizes = groups.setdefault((row.result.case.series, row.loop), {})
            parts = sizes.setdefault(row.result.case.world_size, {})
            parts[row.path[0] if row.path else UNACCOUNTED] = row.time_s
    for (test, loop), sizes in groups.items():
        if len(sizes) > 1:
            names = list(dict.fromkeys(name for parts in sizes.values() for name in parts))
            names.append(names.pop(names.index(UNACCOUNTED)))
            rows = [
                (_ranks(size), [short(max(0.0, parts.get(name, 0.0))) for name in names])
                for size, parts in sorted(sizes.items())
            ]
            yield Bars(title=f"Where {whole_of(loop)} goes: {test}", unit="s", parts=names, rows=rows)


def cost(results: Sequence[CaseResult], prices: Prices | None = None) -> Iterator[Chart]:
    """What more ranks bring: speed-up, fewer and faster steps; its cost; and every training over time, size by size."""
    found: dict[str, dict[str, list[CostRow]]] = {}
    for row in cost_rows(results, prices):
        if row.speedup is not None and row.time_s:
            found.setdefault(row.result.case.series, {}).setdefault(row.what, []).append(row)
    for test, bought in found.items():
        sizes = {what: rows for what, rows in bought.items() if len(rows) > 1}
        for what, rows in sizes.items():
            if any(row.statistical is not None for row in rows):
                yield _speedup(f"Speed-up to {what}: {test}", rows)
        goals = {what: rows for what, rows in sizes.items() if rows[0].met}
        yield from _costs(f"Speed-up and its cost: {test}", goals or sizes, prices)
    yield from _courses(results)


def _costs(title: str, bought: Mapping[str, Sequence[CostRow]], prices: Prices | None) -> Iterator[Chart]:
    """A line for each thing that was bought, and with prices for each of their terms."""
    ways: list[tuple[str, Callable[[CostRow], float | None]]] = [("", _of_ranks)]
    if prices is not None:
        ways = [(f", {term}", partial(CostRow.cost, term=term)) for term in TERMS]
    series = [
        Series(
            name=f"{what}{way}",
            points=points((cost_of(row) or 0.0, row.speedup) for row in rows),
            labels=[_ranks(row.ranks) for row in rows],
        )
        for what, rows in bought.items()
        for way, cost_of in ways
        if all(cost_of(row) for row in rows)
    ]
    if series:
        name, unit = ("cost: ranks x time", "s") if prices is None else ("cost", prices.currency)
        x, y = Axis(name=name, unit=unit, scale="log"), Axis(name="speed-up", scale="log2")
        yield Lines(title=title, x=x, y=y, series=series)


def _of_ranks(row: CostRow) -> float:
    return row.ranks * (row.time_s or 0.0)


def _speedup(title: str, rows: Sequence[CostRow]) -> Lines:
    """As the product of its two: fewer steps, and faster ones."""
    parts: dict[str, Callable[[CostRow], float | None]] = {
        "speed-up": lambda row: row.speedup,
        "fewer steps (statistical)": lambda row: row.statistical,
        "faster steps (hardware)": lambda row: row.hardware,
    }
    series = [Series(name=name, points=points((r.ranks, of(r)) for r in rows)) for name, of in parts.items()]
    least = rows[0].ranks
    ideal = Series(name="ideal", points=points((r.ranks, r.ranks / least) for r in rows), look="reference")
    x = Axis(name="ranks", scale="log2")
    return Lines(title=title, x=x, y=Axis(name="speed-up", scale="log2"), series=[*series, ideal])


def _courses(results: Sequence[CaseResult]) -> Iterator[Chart]:
    """Losses and evaluations of a training by time, a line for each world size: medians over launches and seeds."""
    tests: dict[str, list[CaseResult]] = {}
    for result in results:
        if any(m.name.startswith("steps_to_") for launch in result.launches for m in launch.measurements):
            tests.setdefault(result.case.series, []).append(result)
    for test, sizes in tests.items():
        sizes.sort(key=lambda result: result.case.world_size)
        curves = [(result, without_first_losses(curves_of(result.launches))) for result in sizes]
        for name in dict.fromkeys(name for _, found in curves for name in found):
            lines = [
                Series(name=_ranks(result.case.world_size), points=over_time(result, middle))
                for result, found in curves
                if (middle := median_curve([drawn for _, drawn in found.get(name, [])]))
            ]
            drawn = [line for line in lines if line.points]
            if drawn:
                yield Lines(
                    title=f"{name} by time: {test}",
                    x=Axis(name="time from the first step, evaluations included", unit="s"),
                    y=Axis(name=name, unit=unit_of(sizes, name)),
                    series=drawn,
                    target=target_of(sizes, name),
                )


def _ranks(number: int) -> str:
    return f"{number} rank{'s' * (number != 1)}"
