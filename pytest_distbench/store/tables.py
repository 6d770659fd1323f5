"""Tables in files that other programs read: CSV and Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import BinaryIO, TextIO

from pytest_distbench.errors import DistbenchError
from pytest_distbench.store.rows import Table

_BATCH_ROWS = 50_000


@contextmanager
def as_text(out: BinaryIO) -> Iterator[TextIO]:
    """A binary file to write UTF-8 to; it stays open."""
    text = io.TextIOWrapper(out, encoding="utf-8", newline="")
    try:
        yield text
    finally:
        text.detach()


def write_csv(table: Table, out: BinaryIO, *, show: Callable[[str], str]) -> None:
    """A header and the rows; None is an empty cell.

    Args:
        table: to write.
        out: where to.
        show: makes a text that may be anybody's safe; numbers stay what they are.
    """

    def shown(cells: Iterable[object]) -> list[object]:
        return [show(cell) if isinstance(cell, str) else cell for cell in cells]

    with as_text(out) as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(shown(table.columns))
        writer.writerows(map(shown, table.rows))


def write_parquet(table: Table, out: BinaryIO) -> None:
    """The same, with types, batch by batch.

    Raises:
        DistbenchError: pyarrow is not installed.
    """
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
