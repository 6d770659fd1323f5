"""The tables that a run may have: a new table is one row. Here those of verdicts and of injected slowdowns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pytest_distbench.errors import TableError, tell
from pytest_distbench.extensions import Table
from pytest_distbench.judging.fingerprint_rule import METRIC as FINGERPRINT
from pytest_distbench.judging.fingerprint_rule import communication_texts
from pytest_distbench.judging.outcome import planted_ratio
from pytest_distbench.judging.words import change, current, mde, metric_text, reference, threshold
from pytest_distbench.records.metric import tightest
from pytest_distbench.records.reasons import severity_order
from pytest_distbench.records.run import CaseResult, Control, Finding, RunRecord, is_found
from pytest_distbench.report.tables.record import ENVIRONMENT, LAUNCHES, RECORD
from pytest_distbench.report.tables.table import Cell, Column, DataTable, TableKind, seconds
from pytest_distbench.units import format_change

OfCase = tuple[CaseResult, Finding]
"""A row: a finding beside its case."""


_TEST: Column[OfCase] = Column("test", str, "test", lambda row: Cell(row[0].nodeid, row[0].case.title))


def _slowdown(row: OfCase) -> Control:
    assert row[0].control is not None
    return row[0].control


def _change(ratio: float | None) -> Cell:
    return Cell(ratio, "-" if ratio is None else format_change(ratio))


CONTROL: TableKind[OfCase] = TableKind(
    summary="Injected slowdowns (positive control): which were detected.",
    rows=lambda results: [(r, v) for r in results if r.control is not None for v in r.control.verdicts],
    columns=[
        _TEST,
        Column("metric", str, "metric", lambda row: Cell(row[1].metric, metric_text(row[1]))),
        Column("injected", float, "injected", lambda row: _change(planted_ratio(_slowdown(row), row[1]))),
        Column("measured", float, "measured", lambda row: _change(row[1].ratio)),
        Column("detected", bool, "detected", lambda row: Cell(yes := is_found(row[1]), "yes" if yes else "no")),
        Column("step", str, "step", lambda row: _slowdown(row).step),
        Column("launches", int, "launches", lambda row: _slowdown(row).launches),
        Column("seconds", float, "time", lambda row: seconds(_slowdown(row).took_s)),
    ],
    needs="a run with --distbench-control",
)


COLUMNS: list[Column[Finding]] = [
    Column("metric", str, "metric", lambda v: Cell(v.metric, metric_text(v))),
    Column("unit", str, None, lambda v: v.unit),
    Column("current", float, "this run", lambda v: Cell(v.current, current(v))),
    Column("baseline", float, "baseline", lambda v: Cell(v.baseline, reference(v))),
    Column("statistic", str, "statistic", lambda v: v.statistic if v.ratio is not None else ""),
    Column("ratio", float, "change", lambda v: Cell(v.ratio, change(v))),
    Column("threshold", float, "threshold", lambda v: Cell(v.threshold, threshold(v))),
    Column("mde", float, "MDE", lambda v: Cell(v.mde, mde(v))),
    Column("at_least", float, None, lambda v: tightest(v.bounds, "least")),
    Column("at_most", float, None, lambda v: tightest(v.bounds, "most")),
    Column("launches", int, "n", lambda v: Cell(v.launches, str(v.launches or ""))),
    Column("reason", str, None, lambda v: v.reason),
]
"""A verdict as every reader sees it, in a terminal, on a page, in a pull request and in a file."""


def _of_case(column: Column[Finding]) -> Column[OfCase]:
    """The same beside its case; of the communication, which is no number, both sides are what is sent."""

    def cell(row: OfCase) -> object:
        if row[1].metric == FINGERPRINT and column.name in ("current", "baseline"):
            now, then = communication_texts(row[0])
            return Cell(None, now if column.name == "current" else then)
        return column.cell(row[1])

    return Column(column.name, column.type, column.heading if isinstance(column.heading, str) else None, cell)


def _rows(results: Sequence[CaseResult]) -> list[OfCase]:
    judged = [(result, v) for result in results for v in result.verdicts if v.is_judged]
    return sorted(judged, key=lambda row: severity_order(row[1].code))


def _code(verdict: Finding) -> Cell:
    """The code of its reason, unless that only repeats the verdict."""
    return Cell(verdict.code, "" if verdict.code.replace("-", " ") == verdict.kind else verdict.code)


VERDICTS: TableKind[OfCase] = TableKind(
    summary="Every judged metric.",
    rows=_rows,
    columns=[
        Column("verdict", str, "verdict", lambda row: row[1].kind),
        Column("code", str, "reason", lambda row: _code(row[1])),
        Column("test", str, "test", lambda row: Cell(row[0].nodeid, row[0].test_name)),
        *map(_of_case, COLUMNS),
    ],
)


TABLES: Table[str, TableKind[Any]] = Table(
    "tables",
    {
        "verdicts": VERDICTS,
        "control": CONTROL,
        "record": RECORD,
        "environment": ENVIRONMENT,
        "launches": LAUNCHES,
    },
)
"""By the name that ``--table`` takes."""


def table_of(name: str, record: RunRecord, given: Mapping[str, object] = MappingProxyType({})) -> DataTable:
    """One table of a run; without rows: the run does not have it.

    Args:
        given: what the user gave beside it, by the names that tables take.

    Raises:
        TableError: it cannot be made.
    """
    try:
        return TABLES[name].table(record.results, {**given, "run": record})
    except Exception as error:
        told = str(error) if isinstance(error, TableError) else tell(error)
        raise TableError(f"the table {name!r} cannot be made: {told}") from error


def tables_of(
    record: RunRecord, given: Mapping[str, object] = MappingProxyType({})
) -> tuple[dict[str, DataTable], list[TableError]]:
    """The tables that a run has, those with a row; and what is wrong with those that cannot be made."""
    tables, errors = {}, []
    for name in TABLES:
        try:
            if (table := table_of(name, record, given)).rows:
                tables[name] = table
        except TableError as error:
            errors.append(error)
    return tables, errors
