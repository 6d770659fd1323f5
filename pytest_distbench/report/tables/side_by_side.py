"""Sweeps side by side, as MLBench's task 0a draws backends: a row per message, a column for each way it was sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.tables.collectives import Kind, collective_rows
from pytest_distbench.report.tables.sweep import SweepPoint
from pytest_distbench.report.tables.table import Cell, Column, TableKind, microseconds, number

Way = Literal["backend", "transport"]
"""In what the columns differ: a field of :class:`Kind`."""


@dataclass(slots=True, kw_only=True)
class MessageRow:
    """One message; by way what was measured of it, and by way why nothing was.

    ``kind`` is what all ways have in common: the field that tells them apart is empty, and its test is.
    """

    kind: Kind
    message_bytes: int
    in_place: bool | None
    count: int | None = None
    points: dict[str, SweepPoint] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)


def _rows(results: Sequence[CaseResult], way: Way) -> list[MessageRow]:
    """Of the operations that were asked for in more than one way, in the order of the sweeps.

    What a backend has not, it has in no placement: its reason stands in every row of the message.
    """
    rows: dict[tuple[Kind, int, bool | None], MessageRow] = {}
    refused = []
    for found in collective_rows(results):
        if found.message_bytes is None:
            continue
        apart = replace(found.kind, backend="") if way == "backend" else replace(found.kind, transport="")
        kind, name = replace(apart, test=""), getattr(found.kind, way) or "usual"
        if not found.sides:
            refused.append((kind, found.message_bytes, name, found.verdict))
        for in_place, point in found.sides.items():
            row = MessageRow(kind=kind, message_bytes=found.message_bytes, in_place=in_place, count=found.count)
            rows.setdefault((kind, found.message_bytes, in_place), row).points[name] = point
    for kind, message_bytes, name, why in refused:
        own = [row for row in rows.values() if (row.kind, row.message_bytes) == (kind, message_bytes)]
        for row in own:
            row.reasons[name] = why
    ways: dict[Kind, set[str]] = {}
    for row in rows.values():
        ways.setdefault(row.kind, set()).update(row.points, row.reasons)
    return [row for row in rows.values() if len(ways[row.kind]) > 1]


def _column(name: str) -> Column[MessageRow]:
    def cell(row: MessageRow) -> Cell:
        point = row.points.get(name)
        return Cell(None, row.reasons.get(name, "-")) if point is None else microseconds(point.time_s, ".2f")

    return Column(f"{name}_time_s", float, f"{name} time(us)", cell)


_COMMON: dict[Way, Column[MessageRow]] = {
    "backend": Column("backend", str, "backend", lambda row: row.kind.backend),
    "transport": Column(
        "transport",
        str,
        lambda rows: "transport" if any(row.kind.transport for row in rows) else None,
        lambda row: row.kind.transport,
    ),
}


def _side_by_side(way: Way, *, summary: str, needs: str) -> TableKind[MessageRow]:
    return TableKind(
        summary=summary,
        rows=lambda results: _rows(results, way),
        columns=[
            Column("collective", str, "collective", lambda row: row.kind.collective),
            Column("device", str, "device", lambda row: row.kind.device),
            *(column for other, column in _COMMON.items() if other != way),
            Column("mode", str, "mode", lambda row: Cell(row.kind.mode, f"{row.kind.mode} {row.kind.how}".rstrip())),
            Column("world_size", int, "ranks", lambda row: row.kind.world_size),
            Column("message_bytes", int, "size(B)", lambda row: row.message_bytes),
            Column("count", int, "elements", lambda row: number(row.count, "", nothing="")),
            Column("type", str, "type", lambda row: row.kind.dtype),
            Column("redop", str, "redop", lambda row: row.kind.redop),
            Column("in_place", bool, None, lambda row: row.in_place),
        ],
        further=lambda rows: list(map(_column, sorted({w for row in rows for w in {**row.points, **row.reasons}}))),
        needs=needs,
    )


BACKENDS = _side_by_side(
    "backend",
    summary="Every message of the sweeps that several backends ran, with the time of each backend side by side.",
    needs="a sweep with --distbench-backend NAME,NAME",
)
TRANSPORTS = _side_by_side(
    "transport",
    summary="Every message of the sweeps that were sent by several transports, with the time of each side by side.",
    needs="a sweep with transport=[NAME, NAME]",
)
