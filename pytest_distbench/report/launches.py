"""The table of launches."""

from __future__ import annotations

from pytest_distbench.report.section import LAUNCH, TEST, Cell, Column, OfLaunch, TableKind, number, seconds
from pytest_distbench.units import format_bytes

LAUNCHES: TableKind[OfLaunch[None]] = TableKind(
    summary="Every process group that was started: how it ended, how long it took, what it used.",
    rows=lambda results: [OfLaunch(result, launch, None) for result in results for launch in result.launches],
    columns=[
        TEST,
        LAUNCH,
        Column("outcome", str, "outcome", lambda row: row.launch.outcome),
        Column("wall_s", float, "time", lambda row: seconds(row.launch.wall_s)),
        Column("peak_memory_bytes", int, "memory", lambda row: _memory(row.launch.peak_memory_bytes)),
        Column("foreign_cores", float, "cores of others", lambda row: number(row.launch.foreign_cores, ".2f")),
        Column("reason", str, "reason", lambda row: _first_line(row.launch.reason)),
    ],
)


def _first_line(text: str) -> Cell:
    return Cell(text, (text.splitlines() or [""])[0])


def _memory(num_bytes: int) -> Cell:
    return Cell(num_bytes, format_bytes(num_bytes) if num_bytes else "-")
