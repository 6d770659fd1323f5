"""The table and the charts of phases: the parts of a loop's steps, and of scripts.

Means over steps, launches and seeds, and sums over a script, so that the parts and what is unaccounted are the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Literal, NamedTuple

from pytest_distbench.records.environment import Prices
from pytest_distbench.records.iteration import UNACCOUNTED, Breakdown, BusyCommunication
from pytest_distbench.records.kinds import grouped
from pytest_distbench.records.metric import WALL_TIME
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.page import Chart, bars, short
from pytest_distbench.report.tables.table import TEST, Cell, Column, TableKind, number, seconds
from pytest_distbench.units import counted, format_seconds

COMMUNICATION = ("communication", "all_reduce")
"""Phases of these names are communication; the rest of a step is compute."""

_INDENT = "· "  # blanks at the beginning of a cell would be lost in Markdown

_Kind = Literal["step", "phase", "unaccounted", "apart"]
_Path = tuple[str, ...]


class PhaseRow(NamedTuple):
    """A row: a step, a phase of it, time of a step in no phase, or a phase outside of steps.

    Lists are by rank, means over all steps; a whole script is one step. ``waits_s`` includes waits of phases inside.
    """

    result: CaseResult
    loop: str
    kind: _Kind
    path: _Path
    step_s: float
    times_s: Sequence[float]
    waits_s: Sequence[float] = ()
    late_s: Sequence[float] = ()
    hosts_s: Sequence[float] = ()
    communication_s: float | None = None
    busy: BusyCommunication | None = None
    steps: int | None = None

    @property
    def time_s(self) -> float:
        return fmean(self.times_s)

    @property
    def slowest(self) -> tuple[int, float] | None:
        """The rank with the longest time without waiting, and that time over the others' mean, or None."""
        own = _sums([self.times_s, [-wait_s for wait_s in self.waits_s]])
        rank = max(range(len(own)), key=own.__getitem__)
        others = [time for other, time in enumerate(own) if other != rank]
        return (rank, own[rank] / fmean(others)) if others and fmean(others) > 0 else None

    @property
    def latest(self) -> tuple[int, float] | None:
        """The rank that enters last, and its seconds after the first, or None."""
        if not self.late_s:
            return None
        rank = max(range(len(self.late_s)), key=self.late_s.__getitem__)
        return rank, self.late_s[rank]


def _rows(results: Sequence[CaseResult]) -> Iterator[PhaseRow]:
    for result in results:
        measured = [m for launch in result.launches for m in launch.measurements]
        over_seeds = {m.key: m.key_over_seeds for m in measured}
        each = (pair for launch in result.launches for pair in launch.breakdowns.items())
        found = grouped((over_seeds.get(key, key), breakdown) for key, breakdown in each)
        for loop, breakdowns in found.items():
            timed = {m.spread.n for m in measured if m.key_over_seeds == loop and m.spread}
            steps = timed.pop() if len(timed) == 1 else None  # a script has none, and launches may have unequally many
            yield from (row._replace(steps=steps) for row in _rows_of_loop(result, loop, breakdowns))


def _rows_of_loop(result: CaseResult, loop: str, found: Sequence[Breakdown]) -> Iterator[PhaseRow]:
    parts = _parts(result, loop, found)
    outermost = (path for path in parts if path[-1] in COMMUNICATION and not {*path[:-1]} & {*COMMUNICATION})
    sent = [parts[path].time_s for path in outermost if parts[path].kind == "phase"]
    communication_s = sum(sent) if sent else None
    times_s = _mean([breakdown.times_s for breakdown in found], len(found))
    step_s = fmean(times_s)
    tops = [row for path, row in parts.items() if len(path) == 1]
    waits_s = _sums([row.waits_s for row in tops if row.kind == "phase"])
    busy = result.trace.busy.get(loop) if result.trace is not None else None
    yield PhaseRow(result, loop, "step", (), step_s, times_s, waits_s, communication_s=communication_s, busy=busy)
    for row in tops:
        if row.kind == "phase":
            yield from _with_its_parts(row, parts)
    unaccounted_s = _mean([breakdown.unaccounted_s for breakdown in found], len(found))
    yield PhaseRow(result, loop, UNACCOUNTED, (), step_s, unaccounted_s)
    for row in tops:
        if row.kind == "apart":
            yield from _with_its_parts(row, parts)


def _parts(result: CaseResult, loop: str, found: Sequence[Breakdown]) -> dict[_Path, PhaseRow]:
    """Means over launches and seeds of equally many ranks. One that does not enter a part has spent no time there."""
    step_s = fmean(time_s for breakdown in found for time_s in breakdown.times_s)
    made = {}
    for path in dict.fromkeys(tuple(part.path) for breakdown in found for part in breakdown.parts):
        inside = [part for breakdown in found for part in breakdown.parts if tuple(part.path[: len(path)]) == path]
        same = [part for part in inside if len(part.path) == len(path)]
        made[path] = PhaseRow(
            result,
            loop,
            "apart" if any(part.is_apart for part in same) else "phase",
            path,
            step_s,
            _mean([part.times_s for part in same], len(found)),
            _mean([part.waits_s for part in inside], len(found)),
            _mean([part.late_s for part in same], len(found)),
            _mean([part.hosts_s for part in same], len(found)),
        )
    return made


def _sums(rows: Sequence[Sequence[float]]) -> list[float]:
    return [sum(column) for column in zip(*filter(None, rows), strict=True)]


def _mean(rows: Sequence[Sequence[float]], launches: int) -> list[float]:
    return [total / launches for total in _sums(rows)]


def _with_its_parts(row: PhaseRow, parts: dict[_Path, PhaseRow]) -> Iterator[PhaseRow]:
    yield row
    for path, part in parts.items():
        if path[:-1] == row.path:
            yield from _with_its_parts(part, parts)


def _phase(row: PhaseRow) -> Cell:
    if not row.path:
        whole = "script" if row.loop == WALL_TIME else "step"
        return Cell(row.kind, whole if row.kind == "step" else f"{_INDENT}{row.kind}")
    suffix = " (apart)" if row.kind == "apart" else ""
    return Cell(row.path[-1], _INDENT * len(row.path) + row.path[-1] + suffix)


def _slowest(row: PhaseRow) -> Cell:
    if row.slowest is None:
        return Cell(None, "-")
    rank, times = row.slowest
    return Cell(rank, f"{rank} (x {times:.2f})")


def _latest(row: PhaseRow) -> Cell:
    if row.latest is None:
        return Cell(None, "-")
    rank, late_s = row.latest
    return Cell(rank, f"rank {rank} by {format_seconds(late_s)}")


def _ratio(row: PhaseRow) -> Cell:
    """Ratio of communication to compute, shown as report 003 has it, for ten of compute."""
    if row.communication_s is None or row.communication_s >= row.step_s:
        return Cell(None, "")
    ratio = row.communication_s / (row.step_s - row.communication_s)
    return Cell(ratio, f"10 : {10 * ratio:.2g}")


def _busy(row: PhaseRow) -> Cell:
    if row.busy is None:
        return Cell(None, "")
    return Cell(row.busy.time_s, f"{format_seconds(row.busy.time_s)} of {format_seconds(row.busy.iteration_s)}")


def _mean_or_none(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


PHASES: TableKind[PhaseRow] = TableKind(
    summary="Where the time of each timed loop or script goes, by phase.",
    rows=_rows,
    columns=[
        TEST,
        Column("case", str, None, lambda row: row.result.case.label),
        Column("loop", str, "loop", lambda row: row.loop),
        Column("kind", str, None, lambda row: row.kind),
        Column("parent", str, None, lambda row: "/".join(row.path[:-1])),
        Column("phase", str, "phase", _phase),
        Column("ranks", int, "ranks", lambda row: row.result.case.world_size),
        Column("time_s", float, "time", lambda row: seconds(row.time_s)),
        Column("share", float, "share", lambda row: number(row.time_s / row.step_s, ".1%")),
        Column("total_s", float, "total", lambda row: seconds(row.steps and row.steps * row.time_s), if_any=True),
        Column("steps", int, None, lambda row: row.steps),
        Column("wait_s", float, "wait", lambda row: seconds(_mean_or_none(row.waits_s))),
        Column("latest_rank", int, "comes last", _latest),
        Column("late_s", float, None, lambda row: row.latest and row.latest[1]),
        Column("slowest_rank", int, "slowest rank", _slowest),
        Column("slowest_times_others", float, None, lambda row: row.slowest and row.slowest[1]),
        Column("host_s", float, "host", lambda row: seconds(_mean_or_none(row.hosts_s)), if_any=True),
        Column("communication_per_compute", float, "compute : communication", _ratio),
        Column("busy_communication_s", float, "busy communication", _busy, if_any=True),
        Column("profiled_step_s", float, None, lambda row: row.busy and row.busy.iteration_s),
    ],
    needs="phases in a timed loop (rank.phase), or anywhere in a script (phase of pytest_distbench)",
)


def _tops(results: Sequence[CaseResult]) -> Iterator[tuple[str, PhaseRow]]:
    for row in _rows(results):
        if (row.kind == "phase" and len(row.path) == 1) or row.kind == UNACCOUNTED:
            yield row.path[0] if row.path else UNACCOUNTED, row


def _whole_of(loop: str) -> str:
    return "a script" if loop == WALL_TIME else f"an iteration of {loop}"


def phases_by_rank(result: CaseResult) -> Iterator[Chart]:
    """Chart the time of a step by rank: its outermost phases, and what is unaccounted."""
    loops: dict[str, dict[str, Sequence[float]]] = {}
    for name, row in _tops([result]):
        loops.setdefault(row.loop, {})[name] = row.times_s
    for loop, parts in loops.items():
        rows = [
            (f"rank {rank}", [short(max(0.0, times_s[rank])) for times_s in parts.values()])
            for rank in range(min(map(len, parts.values())))
        ]
        yield bars(f"Where {_whole_of(loop)} goes, by rank", "s", [*parts], rows)


def phases_by_size(results: Sequence[CaseResult], prices: Prices | None = None) -> Iterator[Chart]:
    """Chart the time of a step by world size, for tests that ran at several: means over ranks."""
    del prices
    groups: dict[tuple[str, str], dict[int, dict[str, float]]] = {}
    for name, row in _tops(results):
        sizes = groups.setdefault((row.result.case.series, row.loop), {})
        sizes.setdefault(row.result.case.world_size, {})[name] = row.time_s
    for (test, loop), sizes in groups.items():
        if len(sizes) > 1:
            names = list(dict.fromkeys(name for parts in sizes.values() for name in parts))
            names.append(names.pop(names.index(UNACCOUNTED)))
            rows = [
                (counted(size, "rank"), [short(max(0.0, parts.get(name, 0.0))) for name in names])
                for size, parts in sorted(sizes.items())
            ]
            yield bars(f"Where {_whole_of(loop)} goes: {test}", "s", names, rows)
