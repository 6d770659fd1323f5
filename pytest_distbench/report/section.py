"""Section: one table of a run, each cell a value for machines and a text for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pytest_distbench.store.rows import Column, Table


class Cell(NamedTuple):
    """One cell: what machines read, and what people do."""

    value: object
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One table.

    Attributes:
        columns: for machines: name -> what it holds. Values are in base units.
        headings: for people, one per column; None where the texts of others say it.
        rows: as many cells as columns.
        footer: lines for people below the table.
    """

    columns: Mapping[str, Column]
    headings: Sequence[str | None]
    rows: Sequence[Sequence[Cell]]
    footer: Sequence[str] = ()

    @property
    def table(self) -> Table:
        """The values."""
        return Table(self.columns, [[cell.value for cell in row] for row in self.rows])

    @property
    def header(self) -> list[str]:
        """The headings of the columns that people see."""
        return [heading for heading in self.headings if heading is not None]

    @property
    def texts(self) -> list[list[str]]:
        """The texts below them."""
        return [
            [cell.text for cell, heading in zip(row, self.headings, strict=True) if heading is not None]
            for row in self.rows
        ]


def plain(value: str) -> Cell:
    """A text that is its own value."""
    return Cell(value, value)
