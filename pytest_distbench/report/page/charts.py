"""The charts of the page, a row each, and those of several cases, or of one over many runs.

A row is a function from a case, or from all cases, to what is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TypeVar

from pytest_distbench.errors import tell
from pytest_distbench.extensions import Table
from pytest_distbench.judging.stats import ChangePoint, change_points
from pytest_distbench.records.environment import TERMS, Prices
from pytest_distbench.records.iteration import UNACCOUNTED
from pytest_distbench.records.run import CaseResult, History, Trend
from pytest_distbench.report.page import Axis, Bars, Chart, Choice, Lines, Series, case_charts, points, short
from pytest_distbench.report.page.case_charts import (
    curves_of,
    median_curve,
    over_time,
    target_of,
    unit_of,
    without_first_losses,
)
from pytest_distbench.units import format_change
from pytest_distbench.workloads.tables.cost import CostRow, cost_rows
from pytest_distbench.workloads.tables.phases import PHASES, whole_of
from pytest_distbench.workloads.tables.scaling import SCALING, ScalingRow, scaling_rows

Trends = Mapping[tuple[str, str, str], Sequence[Trend]]
"""Those of a case by hardware class, test and the name of its entry in a store."""


def trends_of(history: History | None) -> Trends:
    found: dict[tuple[str, str, str], list[Trend]] = {}
    for trend in () if history is None else history.trends:
        found.setdefault((trend.platform, trend.test, trend.case), []).append(trend)
    return found


def trends_of_case(result: CaseResult, trends: Trends) -> Iterator[Chart]:
    """The way of each metric of a case that moved, or of which nobody knows, through runs before and after this one."""
    told = {verdict.metric for verdict in result.verdicts if verdict.is_judged and not verdict.row.is_quiet}
    for trend in trends.get((result.environment.platform, result.case.test, result.case.key), ()):
        if trend.metric in told and len(trend.points) > 1:
            yield trend_chart(trend, change_points([point.value for point in trend.points]))


def trend_chart(trend: Trend, changes: Sequence[ChangePoint]) -> Choice:
    """Each run as a dot, and the levels between changes as lines with what changed beside them.

    By the date of a run, or by its commit, of which each has the same room.
    """
    commits = list(dict.fromkeys(point.commit[:10] for point in trend.points))
    by_date = [datetime.fromisoformat(point.at).timestamp() for point in trend.points]
    by_commit = [float(commits.index(point.commit[:10])) for point in trend.points]
    ways = {"by date": (Axis(name="date", unit="date"), by_date)}
    if len(commits) > 1:
        ways["by commit"] = (Axis(name="commit", ticks=[commit or "unknown" for commit in commits]), by_commit)
    charts = [_trend_chart(trend, changes, axis, places) for axis, places in ways.values()]
    return Choice(names=[*ways], charts=charts)


def _trend_chart(trend: Trend, changes: Sequence[ChangePoint], axis: Axis, places: Sequence[float]) -> Lines:
    names = [" ".join(filter(None, [point.at[:10], point.commit[:10]])) for point in trend.points]
    runs = [(place, short(point.value)) for place, point in zip(places, trend.points, strict=True)]
    series = [Series(name="a run", points=runs, names=names, look="dots")]
    if changes:
        begins = [0, *(change.index for change in changes)]
        levels = [changes[0].before, *(change.after for change in changes)]
        labels = ["", *(format_change(change.ratio) for change in changes)]
        level = [(places[begin], short(value)) for begin, value in zip(begins, levels, strict=True)]
        of = [names[begin] for begin in begins]
        series.append(Series(name="level", points=level, names=of, labels=labels, look="steps"))
    y = Axis(name=trend.metric, unit=trend.unit)
    return Lines(title=f"History of {trend.metric}", x=axis, y=y, series=series)


_WORKERS = Axis(name="workers", scale="log2")


def scaling(results: Sequence[CaseResult], prices: Prices | None = None) -> Iterator[Chart]:
    """Speed-up and efficiency by workers: a line for each test, dotted what is ideal, or what the baseline was."""
    del prices
    found: dict[str, list[ScalingRow]] = {}
    name_of = next(column for column in SCALING.columns if column.name == "test")
    for row in scaling_rows(results):
        if row.speedup is not None and row.sized.communicates:
            found.setdefault(name_of.make_cell(row).text, []).append(row)
    if not found:
        return
    speedups = [
        Series(name=name, points=points((row.sized.workers, row.speedup) for row in rows))
        for name, rows in found.items()
    ]
    sizes = sorted({row.sized.workers for rows in found.values() for row in rows})
    ideal = Series(name="ideal", points=points((size, size) for size in sizes), look="reference")
    speedup = Axis(name="speed-up", scale="log2")
    yield Lines(title="Speed-up over one worker", x=_WORKERS, y=speedup, series=[*speedups, ideal])
    shares = []
    for name, rows in found.items():
        shares.append(Series(name=name, points=points((row.sized.workers, row.efficiency) for row in rows)))
        before = points((r.sized.workers, r.verdict.baseline if r.verdict is not None else None) for r in rows)
        if before:
            shares.append(Series(name=f"{name}, baseline", points=before, look="reference"))
    efficiency = Axis(name="scaling efficiency", unit="%")
    yield Lines(title="Scaling efficiency", x=_WORKERS, y=efficiency, series=shares)


def phases(results: Sequence[CaseResult], prices: Prices | None = None) -> Iterator[Chart]:
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
        if row.speedup is not None and row.bought.time_s:
            found.setdefault(row.result.case.series, {}).setdefault(row.bought.what, []).append(row)
    for test, bought in found.items():
        sizes = {what: rows for what, rows in bought.items() if len(rows) > 1}
        for what, rows in sizes.items():
            if any(row.statistical is not None for row in rows):
                yield _speedup(f"Speed-up to {what}: {test}", rows)
        goals = {what: rows for what, rows in sizes.items() if rows[0].bought.met}
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
    return row.ranks * (row.bought.time_s or 0.0)


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


OF_CASE: Table[str, Callable[[CaseResult], Iterable[Chart]]] = Table(
    "charts",
    {
        "communication": case_charts.communication,
        "bandwidth": case_charts.bandwidth,
        "change": case_charts.change_by_size,
        "curves": case_charts.curves,
        "epochs": case_charts.epochs,
        "phases": case_charts.phases,
        "links": case_charts.links,
        "utilisation": case_charts.utilisation,
    },
)
"""In the order in which they stand below a case."""

OF_RUN: Table[str, Callable[[Sequence[CaseResult], Prices | None], Iterable[Chart]]] = Table(
    "charts above tables",
    {
        "scaling": scaling,
        "phases": phases,
        "cost": cost,
    },
)
"""By the name of the table that they stand above; they are made of all cases, and of prices if the user gave them."""


_Given = TypeVar("_Given")


def charts_of(result: CaseResult, trends: Trends) -> tuple[list[Chart], list[str]]:
    """The charts of a case, which may be found in a history; and what is wrong with those that cannot be made."""
    ways = {"history": lambda given: trends_of_case(given, trends)} if trends else {}
    return _charts({**OF_CASE, **ways}, result)


def charts_above(
    table: str, results: Sequence[CaseResult], prices: Prices | None = None
) -> tuple[list[Chart], list[str]]:
    """The same of those that stand above a table of the run, which may have prices."""
    row = OF_RUN.get(table)
    return _charts({} if row is None else {table: lambda given: row(given, prices)}, results)


def _charts(rows: Mapping[str, Callable[[_Given], Iterable[Chart]]], given: _Given) -> tuple[list[Chart], list[str]]:
    charts: list[Chart] = []
    problems = []
    for name, make in rows.items():
        try:
            charts += list(make(given))
        except Exception as error:  # noqa: BLE001 a page without one of its charts is still a page, and says so
            problems.append(f"the chart {name!r} cannot be made: {tell(error)}")
    return charts, problems
