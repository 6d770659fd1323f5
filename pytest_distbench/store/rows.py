"""Run records as flat rows, and tables of values as CSV and Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO, TextIO

from pytest_distbench.errors import DistbenchError
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample, tightest
from pytest_distbench.records.run import CaseResult, RunRecord

ColumnType = type[str] | type[int] | type[float] | type[bool]

_OF_LAUNCH: Mapping[str, ColumnType] = {
    "test": str, "case": str, "world_size": int, "backend": str, "launcher": str, "platform": str, "launch": int,
    "metric": str, "unit": str, "better": str,
}  # fmt: skip

RUN_COLUMNS: Mapping[str, ColumnType] = {
    **_OF_LAUNCH, "value": float, "verdict": str, "at_least": float, "at_most": float
}  # fmt: skip
"""Of a run record; ``metric`` is the name alone, and the point has columns of its own after these."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of plain values.

    Attributes:
        columns: name -> what it holds; any cell may be None.
        rows: as long as there are columns each. May be an iterator: a large store is never in memory whole.
    """

    columns: Mapping[str, ColumnType]
    rows: Iterable[Sequence[object]]


def run_rows(record: RunRecord) -> Table:
    """A run's launches as a table, with one column per axis of its metrics: ``message_bytes``, ``seed``."""
    axes = _axes_of(record)
    return Table({**RUN_COLUMNS, **axes}, [row for result in record.results for row in _rows_of_result(result, axes)])


def distribution_rows(record: RunRecord) -> Table:
    """The iterations of its launches as a table, as far as they are kept, with the same columns for axes."""
    axes = _axes_of(record)
    rows = [
        (*_of_launch(result, launch, m), place / max(1, len(m.values) - 1), value, *_points(m, axes))
        for result in record.results
        for launch in result.launches
        for m in launch.measurements
        if m.spread is not None and m.spread.n and not METRIC_KINDS[m.better].keeps_series
        for place, value in enumerate(m.values)
    ]
    return Table({**_OF_LAUNCH, "quantile": float, "value": float, **axes}, rows)


def _axes_of(record: RunRecord) -> dict[str, ColumnType]:
    axes: dict[str, ColumnType] = {}
    for result in record.results:
        for launch in result.launches:
            for measurement in launch.measurements:
                for axis, point in measurement.at.items():
                    axes[axis] = type(point) if axes.get(axis, type(point)) is type(point) else str
    return axes


def _of_launch(result: CaseResult, launch: LaunchRecord, m: Sample) -> tuple[object, ...]:
    case, under = result.case, result.case.conditions
    group = (case.test, case.name, under.world_size, under.backend, under.launcher, result.environment.platform)
    return (*group, launch.index, m.name, m.unit, m.better)


def _points(m: Sample, axes: Mapping[str, ColumnType]) -> list[object]:
    return [
        None if (point := m.at.get(axis)) is None else kind(point) if kind is str else point
        for axis, kind in axes.items()
    ]


def _rows_of_result(result: CaseResult, axes: Mapping[str, ColumnType]) -> Iterator[tuple[object, ...]]:
    verdicts = {v.metric: v for v in result.verdicts}
    for launch in result.launches:
        for m in launch.measurements:
            verdict = verdicts.get(m.key) or verdicts.get(m.key_over_seeds)
            said = verdict.kind if verdict is not None else ""
            bounds = verdict.bounds if verdict is not None else []
            limits = tightest(bounds, "least"), tightest(bounds, "most")
            yield (*_of_launch(result, launch, m), m.value, said, *limits, *_points(m, axes))


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
    def shown(cells: Iterable[object]) -> list[object]:
        return [show(cell) if isinstance(cell, str) else cell for cell in cells]

    with as_text(out) as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(shown(table.columns))
        writer.writerows(map(shown, table.rows))


def write_parquet(table: Table, out: BinaryIO) -> None:
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
