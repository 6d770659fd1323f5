"""Sweeps side by side, as MLBench's task 0a draws backends: a row per message, a column for each thing compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.tables.collectives import Kind, collective_rows
from pytest_distbench.report.tables.sweep import SweepPoint
from pytest_distbench.report.tables.table import Cell, Column, TableKind, microseconds, number


@dataclass(slots=True, kw_only=True)
class Message:
    """One message, sent in one way; by side what was measured of it, and by side why nothing was.

    ``kind`` is what the sides have in common; what tells them apart, and the test, are empty. ``order`` is that of the
    sides of this kind.
    """

    kind: Kind
    message_bytes: int
    in_place: bool | None
    count: int | None = None
    points: dict[str, SweepPoint] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    order: tuple[str, ...] = ()


def messages(results: Sequence[CaseResult], apart: str) -> list[Message]:
    """Of the operations that were measured on more than one side, in the order of the sweeps.

    What a side has not, it has in no placement: its reason stands in every row of the message.

    Args:
        results: of the cases.
        apart: the field of a sweep's kind that tells the sides apart.
    """
    rows: dict[tuple[Kind, int, bool | None], Message] = {}
    refused = []
    for found in collective_rows(results):
        side: str = getattr(found.kind, apart)
        if found.message_bytes is None or not side:
            continue
        kind = replace(found.kind, **{"test": "", apart: ""})  # type: ignore[arg-type] # both are texts
        if not found.sides:
            refused.append((kind, found.message_bytes, side, found.verdict))
        for in_place, point in found.sides.items():
            row = Message(kind=kind, message_bytes=found.message_bytes, in_place=in_place, count=found.count)
            rows.setdefault((kind, found.message_bytes, in_place), row).points[side] = point
    for kind, message_bytes, side, why in refused:
        own = [row for row in rows.values() if (row.kind, row.message_bytes) == (kind, message_bytes)]
        for row in own:
            row.reasons[side] = why
    sides: dict[Kind, dict[str, None]] = {}
    for row in rows.values():
        sides.setdefault(row.kind, {}).update(dict.fromkeys([*row.points, *row.reasons]))
    for row in rows.values():
        row.order = tuple(sides[row.kind])
    return [row for row in rows.values() if len(row.order) > 1]


def _time(side: str) -> Column[Message]:
    def cell(row: Message) -> Cell:
        point = row.points.get(side)
        return Cell(None, row.reasons.get(side, "-")) if point is None else microseconds(point.time_s, ".2f")

    return Column(f"{side}_time_s", float, f"{side} time(us)", cell)


def _times_first(side: str) -> Column[Message]:
    def cell(row: Message) -> Cell:
        own_s, first_s = (point.time_s if (point := row.points.get(of)) else None for of in (side, row.order[0]))
        return number(own_s / first_s if own_s and first_s else None, ".3f")

    return Column(f"{side}_times_first", float, f"x {side}", cell)


def _sides(rows: Sequence[Message]) -> list[str]:
    return list(dict.fromkeys(side for row in rows for side in row.order))


_OF_A_MESSAGE: list[Column[Message]] = [
    Column("collective", str, "collective", lambda row: row.kind.collective),
    Column("device", str, "device", lambda row: row.kind.device),
    Column("mode", str, "mode", lambda row: Cell(row.kind.mode, f"{row.kind.mode} {row.kind.how}".rstrip())),
    Column("world_size", int, "ranks", lambda row: row.kind.world_size),
    Column("message_bytes", int, "size(B)", lambda row: row.message_bytes),
    Column("count", int, "elements", lambda row: number(row.count, "", nothing="")),
    Column("type", str, "type", lambda row: row.kind.dtype),
    Column("redop", str, "redop", lambda row: row.kind.redop),
    Column("in_place", bool, None, lambda row: row.in_place),
]

BACKENDS: TableKind[Message] = TableKind(
    summary="Every message of the sweeps that several backends ran, with the time of each backend side by side.",
    rows=lambda results: messages(results, "backend"),
    columns=_OF_A_MESSAGE,
    further=lambda rows: [_time(side) for side in sorted(_sides(rows))],
    needs="a sweep with --distbench-backend NAME,NAME",
)

NETWORKS: TableKind[Message] = TableKind(
    summary="Every message of the sweeps that ran over several networks: the time over each, and how many times that "
    "of the first it is.",
    rows=lambda results: messages(results, "network"),
    columns=[_OF_A_MESSAGE[0], Column("backend", str, "backend", lambda row: row.kind.backend), *_OF_A_MESSAGE[1:]],
    further=lambda rows: [*map(_time, _sides(rows)), *map(_times_first, _sides(rows)[1:])],
    needs="a sweep over several networks: network=",
)
