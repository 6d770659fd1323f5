"""How what is sent and held grows with the world size: one row per loop and size, with the factor to the smallest."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_distbench.judging.structure import UNITS, Structure, structure_of
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.rows import quantity

Row = tuple[str, str, int, Structure]
"""Test, loop, ranks, and what one of them sends and holds."""


def growth_rows(results: Sequence[CaseResult]) -> list[Row]:
    """Of every loop that was looked at with several world sizes, tests together and ascending in their ranks."""
    rows = [
        (_test_of(result), loop, result.case.world_size, structure_of(fingerprint))
        for result in results
        for launch in result.launches[:1]
        for loop, fingerprint in launch.fingerprints.items()
        if not fingerprint.missing
    ]
    sizes: dict[tuple[str, str], set[int]] = {}
    for row in rows:
        sizes.setdefault(row[:2], set()).add(row[2])
    order = list(sizes)
    grown = [row for row in rows if len(sizes[row[:2]]) > 1]
    return sorted(grown, key=lambda row: (order.index(row[:2]), row[2]))


def growth_text(name: str, row: Row, rows: Sequence[Row]) -> str:
    """A number of a row, and how many times that of the fewest ranks it is."""
    value = getattr(row[3], name)
    least = next(other for other in rows if other[:2] == row[:2])
    base = getattr(least[3], name)
    text = quantity(value, UNITS[name])
    return text if least is row or not base else f"{text} (x{value / base:.3g})"


def _test_of(result: CaseResult) -> str:
    """The test with its parameters and the name of its run, without its world size."""
    case = result.case
    known = ":".join(filter(None, [case.family, case.run]))
    return f"{case.function}[{known}]" if known else case.function
