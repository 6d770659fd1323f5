"""Sweeps side by side, as MLBench's task 0a draws backends: a row per message, a column for each way it was sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.tables.collectives import Kind, collective_rows
from pytest_distbench.report.tables.sweep import SweepPoint
from pytest_distbench.report.tables.table import Cell, Column, TableKind, microseconds, number

Way = Literal["backend", "transport", "network"]
"""In what the columns differ: a field of :class:`Kind`."""

_UNNAMED: dict[Way, str] = {"transport": "usual"}
"""What a way is called that nobody has chosen; where none is named here, it is no side of a comparison."""


@dataclass(slots=True, kw_only=True)
class MessageRow:
    """One message; by way what was measured of it, and by way why nothing was.

    ``kind`` is what all ways have in common: the field that tells them apart is empty, and its test is. ``order`` is
    that of the ways in which such messages were sent.
    """

    kind: Kind
    message_bytes: int
    in_place: bool | None
    count: int | None = None
    points: dict[str, SweepPoint] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    order: tuple[str, ...] = ()


def _rows(results: Sequence[CaseResult], way: Way) -> list[MessageRow]:
    """Of the operations that were measured in more than one way, in the order of the sweeps.

    What a backend has not, it has in no placement: its reason stands in every row of the message.
    """
    rows: dict[tuple[Kind, int, bool | None], MessageRow] = {}
    refused = []
    for found in collective_rows(results):
        name: str = getattr(found.kind, way) or _UNNAMED.get(way, "")
        if found.message_bytes is None or not name:
            continue
        kind = replace(found.kind, **{"test": "", way: ""})  # type: ignore[arg-type] # both are texts
        if not found.sides:
            refused.append((kind, found.message_bytes, name, found.verdict))
        for in_place, point in found.sides.items():
            row = MessageRow(kind=kind, message_bytes=found.message_bytes, in_place=in_place, count=found.count)
            rows.setdefault((kind, found.message_bytes, in_place), row).points[name] = point
    for kind, message_bytes, name, why in refused:
        own = [row for row in rows.values() if (row.kind, row.message_bytes) == (kind, message_bytes)]
        for row in own:
            row.reasons[name] = why
    ways: dict[Kind, dict[str, None]] = {}
    for row in rows.values():
        ways.setdefault(row.kind, {}).update(dict.fromkeys([*row.points, *row.reasons]))
    for row in rows.values():
        row.order = tuple(ways[row.kind])
    return [row for row in rows.values() if len(row.order) > 1]


def _time(name: str) -> Column[MessageRow]:
    def cell(row: MessageRow) -> Cell:
        point = row.points.get(name)
        return Cell(None, row.reasons.get(name, "-")) if point is None else microseconds(point.time_s, ".2f")

    return Column(f"{name}_time_s", float, f"{name} time(us)", cell)


def _times_first(name: str) -> Column[MessageRow]:
    def cell(row: MessageRow) -> Cell:
        own_s, first_s = (point.time_s if (point := row.points.get(of)) else None for of in (name, row.order[0]))
        return number(own_s / first_s if own_s and first_s else None, ".3f")

    return Column(f"{name}_times_first", float, f"x {name}", cell)


def _names(rows: Sequence[MessageRow]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.order))


def _if_chosen(way: Way) -> Column[MessageRow]:
    """In what the rows may differ besides; people see it where one has it."""

    def heading(rows: Sequence[MessageRow]) -> str | None:
        return way if any(getattr(row.kind, way) for row in rows) else None

    return Column(way, str, heading, lambda row: getattr(row.kind, way))


def _side_by_side(way: Way, *, summary: str, needs: str, has_ratios: bool = False) -> TableKind[MessageRow]:
    """The table of ways; with ratios in the order of the sweeps, else by their names."""
    others: list[Way] = [other for other in ("backend", "transport", "network") if other != way]

    def further(rows: Sequence[MessageRow]) -> list[Column[MessageRow]]:
        names = _names(rows)
        if not has_ratios:
            return list(map(_time, sorted(names)))
        return [*map(_time, names), *map(_times_first, names[1:])]

    return TableKind(
        summary=summary,
        rows=lambda results: _rows(results, way),
        columns=[
            Column("collective", str, "collective", lambda row: row.kind.collective),
            Column("device", str, "device", lambda row: row.kind.device),
            *map(_if_chosen, others),
            Column("mode", str, "mode", lambda row: Cell(row.kind.mode, f"{row.kind.mode} {row.kind.how}".rstrip())),
            Column("world_size", int, "ranks", lambda row: row.kind.world_size),
            Column("message_bytes", int, "size(B)", lambda row: row.message_bytes),
            Column("count", int, "elements", lambda row: number(row.count, "", nothing="")),
            Column("type", str, "type", lambda row: row.kind.dtype),
            Column("redop", str, "redop", lambda row: row.kind.redop),
            Column("in_place", bool, None, lambda row: row.in_place),
        ],
        further=further,
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
NETWORKS = _side_by_side(
    "network",
    summary="Every message of the sweeps that ran over several networks: the time over each, and how many times that "
    "of the first it is.",
    needs="a sweep over several networks: network=",
    has_ratios=True,
)
