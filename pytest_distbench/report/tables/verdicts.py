"""The table of verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pytest_distbench.records.bound import tightest
from pytest_distbench.records.kinds import VERDICT_KINDS
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.report.tables.table import Cell, Column, TableKind
from pytest_distbench.report.texts.words import change, current, limit, metric_text, reference, test_name, words_for


class VerdictRow(NamedTuple):
    """One metric of one case."""

    result: CaseResult
    verdict: Verdict


def _rows(results: Sequence[CaseResult]) -> list[VerdictRow]:
    order = list(VERDICT_KINDS)
    judged = [VerdictRow(result, v) for result in results for v in result.verdicts if v.is_judged]
    return sorted(judged, key=lambda row: order.index(row.verdict.kind))


def _other_side(rows: Sequence[VerdictRow]) -> str:
    return words_for(rows[0].result).name if rows else ""


VERDICTS: TableKind[VerdictRow] = TableKind(
    summary="Every judged metric, the gravest verdicts first.",
    rows=_rows,
    columns=[
        Column("verdict", str, "verdict", lambda row: row.verdict.kind),
        Column("test", str, "test", lambda row: Cell(row.result.nodeid, test_name(row.result))),
        Column("metric", str, "metric", lambda row: Cell(row.verdict.metric, metric_text(row.verdict))),
        Column("unit", str, None, lambda row: row.verdict.unit),
        Column("current", float, "this run", lambda row: Cell(row.verdict.current, current(row.verdict))),
        Column("baseline", float, _other_side, lambda row: Cell(row.verdict.baseline, reference(row.verdict))),
        Column("ratio", float, "change", lambda row: Cell(row.verdict.ratio, change(row.verdict))),
        Column("limit", float, "limit", lambda row: Cell(row.verdict.limit, limit(row.verdict))),
        Column("at_least", float, None, lambda row: tightest(row.verdict.bounds, "least")),
        Column("at_most", float, None, lambda row: tightest(row.verdict.bounds, "most")),
        Column("launches", int, "n", lambda row: row.verdict.launches),
        Column("reason", str, None, lambda row: row.verdict.reason),
    ],
)
