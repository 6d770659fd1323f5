"""A table of a run is a list of columns: a new column is one row in the list of its table."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Any, BinaryIO, Generic, NamedTuple, TextIO, TypeVar

from pytest_distbench.errors import DistbenchError, TableError, error_text, show
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report import escape_cell
from pytest_distbench.units import format_bytes, format_seconds

ColumnType = type[str] | type[int] | type[float] | type[bool]


@dataclass(frozen=True, slots=True)
class DataTable:
    """A table as it is written.

    Attributes:
        columns: name -> type; values are in base units, and any may be None.
        rows: rows of one value per column. May be an iterator: a large store is never in memory whole.
        headings: headings for people, one per column, or None if people do not see the column.
        texts: texts of each row for people, under the headings that are not None.
        footer: lines for people below the table.
    """

    columns: Mapping[str, ColumnType]
    rows: Iterable[Sequence[object]]
    headings: Sequence[str | None] = ()
    texts: Sequence[Sequence[str]] = ()
    footer: Sequence[str] = ()

    @property
    def header(self) -> list[str]:
        return [heading for heading in self.headings if heading is not None]


Row = TypeVar("Row")
Item = TypeVar("Item")


class Cell(NamedTuple):
    """One cell: the value for machines, and the text for people."""

    value: object
    text: str


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """One column of a table.

    Attributes:
        type: type of the values, which are in base units; any may be None.
        heading: text, or a function of the rows that returns it, or None if people do not see the column.
        cell: takes a row, and returns a :class:`Cell`, or a value that is its own text.
        if_any: whether people see the column only if a row has a value in it that is neither None nor empty.
    """

    name: str
    type: ColumnType
    heading: str | Callable[[Sequence[Row]], str | None] | None
    cell: Callable[[Row], object]
    if_any: bool = False

    def make_cell(self, row: Row) -> Cell:
        """The cell of this row.

        Raises:
            TableError: it cannot be made; the message names the column and its module.
        """
        try:
            made = self.cell(row)
        except Exception as error:
            raise TableError(f"column {self.name!r} of {self.cell.__module__}: {error_text(error)}") from error
        value = made.value if isinstance(made, Cell) else made
        if value is not None and not isinstance(value, int | float if self.type is float else self.type):
            wrong = f"wanted {self.type.__name__} or None, found {show(value)}"
            raise TableError(f"column {self.name!r} of {self.cell.__module__}: TypeError: {wrong}")
        if isinstance(made, Cell):
            return made
        return Cell(value, "-" if value is None else f"{value:.4g}" if self.type is float else str(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableKind(Generic[Row]):
    """A table that runs may have.

    Attributes:
        rows: takes the cases of a run, and the arguments that ``takes`` names; returns the rows.
        columns: columns from left to right.
        further: takes the rows, and returns columns that depend on them, to the right of ``columns``.
        footer: takes the rows, and returns lines for people below them.
        needs: what a run must have for the table, if its name does not say so.
        takes: names of further arguments of ``rows``, which have defaults there: ``run``, the whole record;
            ``prices``, the list of ``report --prices``.
        marks: word in a cell -> its CSS class, for a table that the page shows above the cases.
    """

    summary: str
    rows: Callable[..., Iterable[Row]]
    columns: list[Column[Row]]
    further: Callable[[Sequence[Row]], list[Column[Row]]] = lambda rows: []
    footer: Callable[[Sequence[Row]], Iterable[str]] = lambda rows: ()
    needs: str = ""
    takes: Sequence[str] = ()
    marks: Mapping[str, str] = field(default_factory=dict)

    def table(self, results: Sequence[CaseResult], given: Mapping[str, object] = MappingProxyType({})) -> DataTable:
        rows = list(self.rows(results, **{name: given[name] for name in self.takes if name in given}))
        return table_of_rows(rows, [*self.columns, *self.further(rows)], footer=list(self.footer(rows)))


def table_of_rows(rows: Sequence[Row], columns: Sequence[Column[Row]], *, footer: Sequence[str] = ()) -> DataTable:
    """The table with these rows and columns."""
    made = [[column.make_cell(row) for column in columns] for row in rows]
    headings = [column.heading(rows) if callable(column.heading) else column.heading for column in columns]
    for i, column in enumerate(columns):
        if column.if_any and all(cells[i].value in (None, "") for cells in made):
            headings[i] = None
    shown = [heading is not None for heading in headings]
    return DataTable(
        columns={column.name: column.type for column in columns},
        rows=[[cell.value for cell in row] for row in made],
        headings=headings,
        texts=[[cell.text for cell, is_shown in zip(row, shown, strict=True) if is_shown] for row in made],
        footer=footer,
    )


def number(value: float | None, spec: str, *, unit: str = "", nothing: str = "-") -> Cell:
    """A number in this format, followed by its unit."""
    return Cell(value, nothing if value is None else f"{value:{spec}}{unit}")


def seconds(value: float | None) -> Cell:
    """A duration in the unit that suits it."""
    return Cell(value, "-" if value is None else format_seconds(value))


def microseconds(value: float | None, spec: str) -> Cell:
    """A duration in microseconds."""
    return Cell(value, "-" if value is None else f"{value * 1e6:{spec}}")


def num_bytes(value: int, nothing: str = "0 B") -> Cell:
    """A size in the unit that suits it."""
    return Cell(value, format_bytes(value) if value else nothing)


class OfLaunch(NamedTuple, Generic[Item]):
    """A row of a table about one item of a launch, such as an elastic job or a worker, with its case and launch."""

    result: CaseResult
    launch: LaunchRecord
    item: Item


def rows_of_launches(
    results: Sequence[CaseResult], item_of: Callable[[LaunchRecord], Item | None]
) -> Iterator[OfLaunch[Item]]:
    """Yield a row for each launch of the cases for which ``item_of`` returns an item and not None."""
    for result in results:
        for launch in result.launches:
            if (item := item_of(launch)) is not None:
                yield OfLaunch(result, launch, item)


TEST: Column[Any] = Column("test", str, "test", lambda row: Cell(row.result.nodeid, row.result.case.title))
LAUNCH: Column[Any] = Column("launch", int, "launch", lambda row: Cell(row.launch.index, str(row.launch.index + 1)))


_BATCH_ROWS = 50_000


@contextmanager
def as_text(out: BinaryIO) -> Iterator[TextIO]:
    """Write UTF-8 to a binary file, which stays open."""
    text = io.TextIOWrapper(out, encoding="utf-8", newline="")
    try:
        yield text
    finally:
        text.detach()


def write_csv(table: DataTable, out: BinaryIO) -> None:
    """Write CSV, with texts that are safe in a spreadsheet."""

    def shown(cells: Iterable[object]) -> list[object]:
        return [escape_cell(cell) if isinstance(cell, str) else cell for cell in cells]

    with as_text(out) as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(shown(table.columns))
        writer.writerows(map(shown, table.rows))


def write_parquet(table: DataTable, out: BinaryIO) -> None:
    """Write Parquet, in batches of rows."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise DistbenchError("--format parquet needs pyarrow: pip install 'pytest-distbench[parquet]'") from None

    types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}
    schema = pyarrow.schema([(name, types[kind]) for name, kind in table.columns.items()])
    remaining = iter(table.rows)
    with pyarrow.parquet.ParquetWriter(out, schema) as writer:
        while batch := list(islice(remaining, _BATCH_ROWS)):
            writer.write_table(pyarrow.table(list(zip(*batch, strict=True)), schema=schema))
