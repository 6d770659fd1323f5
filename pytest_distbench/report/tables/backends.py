"""Sweeps of several backends side by side, as MLBench's task 0a draws them: a row per message, a column per backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.tables.collectives import Kind, collective_rows
from pytest_distbench.report.tables.sweep import SweepPoint
from pytest_distbench.report.tables.table import Cell, Column, TableKind, microseconds, number


@dataclass(slots=True, kw_only=True)
class BackendsRow:
    """One message, sent in one way; by backend what was measured of it, and by backend why nothing was.

    ``kind`` is what the backends have in common; its own backend and test are empty.
    """

    kind: Kind
    message_bytes: int
    in_place: bool | None
    count: int | None = None
    points: dict[str, SweepPoint] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)


def _rows(results: Sequence[CaseResult]) -> list[BackendsRow]:
    """Of the operations that more than one backend was asked for, in the order of the sweeps.

    What a backend has not, it has in no placement: its reason stands in every row of the message.
    """
    rows: dict[tuple[Kind, int, bool | None], BackendsRow] = {}
    refused = []
    for found in collective_rows(results):
        if found.message_bytes is None:
            continue
        kind, backend = replace(found.kind, backend="", test=""), found.kind.backend
        if not found.sides:
            refused.append((kind, found.message_bytes, backend, found.verdict))
        for in_place, point in found.sides.items():
            row = BackendsRow(kind=kind, message_bytes=found.message_bytes, in_place=in_place, count=found.count)
            rows.setdefault((kind, found.message_bytes, in_place), row).points[backend] = point
    for kind, message_bytes, backend, why in refused:
        own = [row for row in rows.values() if (row.kind, row.message_bytes) == (kind, message_bytes)]
        for row in own:
            row.reasons[backend] = why
    backends: dict[Kind, set[str]] = {}
    for row in rows.values():
        backends.setdefault(row.kind, set()).update(row.points, row.reasons)
    return [row for row in rows.values() if len(backends[row.kind]) > 1]


def _column(backend: str) -> Column[BackendsRow]:
    def cell(row: BackendsRow) -> Cell:
        point = row.points.get(backend)
        return Cell(None, row.reasons.get(backend, "-")) if point is None else microseconds(point.time_s, ".2f")

    return Column(f"{backend}_time_s", float, f"{backend} time(us)", cell)


BACKENDS: TableKind[BackendsRow] = TableKind(
    summary="Every message of the sweeps that several backends ran, with the time of each backend side by side.",
    rows=_rows,
    columns=[
        Column("collective", str, "collective", lambda row: row.kind.collective),
        Column("device", str, "device", lambda row: row.kind.device),
        Column("mode", str, "mode", lambda row: Cell(row.kind.mode, f"{row.kind.mode} {row.kind.how}".rstrip())),
        Column("world_size", int, "ranks", lambda row: row.kind.world_size),
        Column("message_bytes", int, "size(B)", lambda row: row.message_bytes),
        Column("count", int, "elements", lambda row: number(row.count, "", nothing="")),
        Column("type", str, "type", lambda row: row.kind.dtype),
        Column("redop", str, "redop", lambda row: row.kind.redop),
        Column("in_place", bool, None, lambda row: row.in_place),
    ],
    further=lambda rows: list(map(_column, sorted({b for row in rows for b in {**row.points, **row.reasons}}))),
    needs="a sweep with --distbench-backend NAME,NAME",
)
