"""The table of slowdowns that were planted: what was found of each, and at what cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pytest_distbench.records.control import Control, is_found
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.report.tables.table import TEST, Cell, Column, TableKind, seconds
from pytest_distbench.report.texts.control import planted_ratio
from pytest_distbench.report.texts.words import metric_text
from pytest_distbench.units import format_change


class ControlRow(NamedTuple):
    """One clock of one case."""

    result: CaseResult
    control: Control
    verdict: Verdict


def _rows(results: Sequence[CaseResult]) -> list[ControlRow]:
    return [ControlRow(r, r.control, v) for r in results if r.control is not None for v in r.control.verdicts]


def _change(ratio: float | None) -> Cell:
    return Cell(ratio, "-" if ratio is None else format_change(ratio))


CONTROL: TableKind[ControlRow] = TableKind(
    summary="Slowdowns that were planted: which the run would have told of, and at which step that was decided.",
    rows=_rows,
    columns=[
        TEST,
        Column("metric", str, "metric", lambda row: Cell(row.verdict.metric, metric_text(row.verdict))),
        Column("planted", float, "planted", lambda row: _change(planted_ratio(row.control, row.verdict))),
        Column("seen", float, "seen", lambda row: _change(row.verdict.ratio)),
        Column(
            "found", bool, "found", lambda row: Cell(is_found(row.verdict), "yes" if is_found(row.verdict) else "no")
        ),
        Column("step", str, "step", lambda row: row.control.step),
        Column("launches", int, "launches", lambda row: row.control.launches),
        Column("seconds", float, "time", lambda row: seconds(row.control.took_s)),
    ],
    needs="a run with --distbench-control",
)
