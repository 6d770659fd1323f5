"""Charts of several cases together: scaling, where a step goes by world size, cost against speed-up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from pytest_distbench.records.breakdown import UNACCOUNTED
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.page.chart import Axis, Bars, Chart, Lines, Series, points, short
from pytest_distbench.report.tables.cost import cost_rows
from pytest_distbench.report.tables.phases import PHASES, whole_of
from pytest_distbench.report.tables.scaling import SCALING, ScalingRow, scaling_rows

_WORKERS = Axis(name="workers", scale="log2")


def scaling(results: Sequence[CaseResult]) -> Iterator[Chart]:
    """Speed-up and efficiency by workers: a line for each test, dotted what is ideal, or what the baseline was."""
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
    yield Lines(title="Speed-up beside one worker", x=_WORKERS, y=speedup, series=[*speedups, ideal])
    shares = []
    for name, rows in found.items():
        shares.append(Series(name=name, points=points((row.sized.workers, row.efficiency) for row in rows)))
        before = points((r.sized.workers, r.verdict.baseline if r.verdict is not None else None) for r in rows)
        if before:
            shares.append(Series(name=f"{name}, baseline", points=before, look="reference"))
    efficiency = Axis(name="scaling efficiency", unit="%")
    yield Lines(title="Scaling efficiency", x=_WORKERS, y=efficiency, series=shares)


def phases(results: Sequence[CaseResult]) -> Iterator[Chart]:
    """Where a step goes by world size, of tests that ran at several: means over ranks."""
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


def cost(results: Sequence[CaseResult]) -> Iterator[Chart]:
    """Speed-up against what it takes, ranks times time: up is faster, right is dearer."""
    series = []
    for (test, what), rows in groupby(cost_rows(results), key=lambda row: (row.result.case.series, row.bought.what)):
        found = [row for row in rows if row.speedup is not None and row.bought.time_s]
        if len(found) > 1:
            pairs = points((row.ranks * (row.bought.time_s or 0.0), row.speedup) for row in found)
            labels = [_ranks(row.ranks) for row in found]
            series.append(Series(name=f"{test}: {what}", points=pairs, labels=labels))
    if series:
        x = Axis(name="cost: ranks x time", unit="s", scale="log")
        y = Axis(name="speed-up", scale="log2")
        yield Lines(title="Speed-up and its cost", x=x, y=y, series=series)


def _ranks(number: int) -> str:
    return f"{number} rank{'s' * (number != 1)}"
