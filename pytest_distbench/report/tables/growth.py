"""How what is sent and held grows with the world size: one row per loop and size, with the factor to the smallest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pytest_distbench.judging.structure import UNITS, Structure, structure_of
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.tables.table import Cell, Column, TableKind
from pytest_distbench.report.texts.words import quantity


class GrowthRow(NamedTuple):
    """What a rank sends and holds in a loop of a test at one world size, and what at the smallest."""

    test: str
    loop: str
    ranks: int
    structure: Structure
    least: Structure


def growth_rows(results: Sequence[CaseResult]) -> list[GrowthRow]:
    """Of every loop that was looked at with several world sizes, tests together and ascending in their ranks."""
    found: dict[tuple[str, str], list[tuple[int, Structure]]] = {}
    for result in results:
        for launch in result.launches[:1]:
            for loop, fingerprint in launch.fingerprints.items():
                if not fingerprint.missing:
                    sizes = found.setdefault((result.case.series, loop), [])
                    sizes.append((result.case.world_size, structure_of(fingerprint)))
    for sizes in found.values():
        sizes.sort(key=lambda size: size[0])
    return [
        GrowthRow(test, loop, ranks, structure, least=sizes[0][1])
        for (test, loop), sizes in found.items()
        for ranks, structure in sizes
        if sizes[0][0] < sizes[-1][0]
    ]


def _column(name: str, heading: str) -> Column[GrowthRow]:
    def cell(row: GrowthRow) -> Cell:
        value, base = getattr(row.structure, name), getattr(row.least, name)
        text = quantity(value, UNITS[name])
        return Cell(value, text if row.least is row.structure or not base else f"{text} (x{value / base:.3g})")

    return Column(name, int, heading, cell)


GROWTH: TableKind[GrowthRow] = TableKind(
    summary="What an iteration sends and a rank holds, by world size, with the factor to the smallest.",
    rows=growth_rows,
    columns=[
        Column("test", str, "test", lambda row: row.test),
        Column("of", str, "of", lambda row: row.loop),
        Column("world_size", int, "ranks", lambda row: row.ranks),
        _column("collectives", "collectives"),
        _column("sent_bytes", "sent"),
        _column("parameter_bytes", "parameters"),
        _column("optimizer_bytes", "optimizer state"),
    ],
    needs="tests that ran at several world sizes",
)
