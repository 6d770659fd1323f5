"""The tables of verdicts, of planted slowdowns with what each cost, and of a history's changes of level."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pytest_distbench.judging.fingerprint_rule import METRIC as FINGERPRINT
from pytest_distbench.judging.outcome import planted_ratio
from pytest_distbench.judging.stats import LEAST_RUNS, ChangePoint, fewest_runs
from pytest_distbench.judging.words import change, current, mde, metric_text, reference, threshold
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.metric import tightest
from pytest_distbench.records.reasons import severity_order
from pytest_distbench.records.run import CaseResult, Control, Finding, Point, Trend, is_found
from pytest_distbench.report.tables.table import TEST, Cell, Column, Section, TableKind, seconds, section_of_rows
from pytest_distbench.units import format_change, format_quantity
from pytest_distbench.workloads.tables.communication import communication_texts


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendRow:
    """A metric, and a change of its level; None: it has none."""

    trend: Trend
    change: ChangePoint | None

    @property
    def first(self) -> float:
        """The level before the change; without one the median of the first runs."""
        if self.change is not None:
            return self.change.before
        return statistics.median(point.value for point in self.trend.points[: self._few])

    @property
    def last(self) -> float:
        """The level after the change; without one the median of the last runs."""
        if self.change is not None:
            return self.change.after
        return statistics.median(point.value for point in self.trend.points[-self._few :])

    @property
    def _few(self) -> int:
        return max(1, min(LEAST_RUNS, len(self.trend.points) // 2))

    @property
    def ratio(self) -> float | None:
        return self.last / self.first if self.first else None

    @property
    def is_worse(self) -> bool:
        sign = METRIC_KINDS[self.trend.better].sign
        return self.change is not None and sign * (self.change.after - self.change.before) > 0

    @property
    def moved(self) -> float:
        """By how much, whatever the direction: the logarithm of the ratio."""
        return abs(math.log(self.ratio)) if self.ratio is not None and self.ratio > 0 else 0.0

    @property
    def kind(self) -> str:
        """``worse``, ``better``, or ``changed`` where neither is known; without a change whether that is known."""
        if self.change is None:
            return why_unknown(self.trend) or "steady"
        return "worse" if self.is_worse else "better" if METRIC_KINDS[self.trend.better].sign else "changed"

    @property
    def commits(self) -> tuple[str, str]:
        """The last commit on the old level, and the first on the new one; empty: unknown, or there is no change."""
        if self.change is None:
            return "", ""
        points = self.trend.points
        return points[self.change.index - 1].commit, points[self.change.index].commit

    @property
    def bisect(self) -> str:
        """The command that finds the commit; empty where no commits are known, or there is none between them."""
        good, bad = (commit.removesuffix("-dirty") for commit in self.commits)
        if not good or not bad or good == bad:
            return ""
        good, bad = good[:10], bad[:10]
        test = f"'{self.trend.nodeid}' --world-size {self.trend.world_size}"
        slow = " --distbench-full" if self.trend.is_slow else ""
        run = f"distbench verdict --metric '{self.trend.metric}' {test}{slow} --distbench-against {good}"
        return f"git bisect start {bad} {good} && git bisect run {run}"


def why_unknown(trend: Trend) -> str:
    """Why nobody can know whether the level of a metric changed; empty: one can."""
    if len(trend.points) < fewest_runs():
        return f"not enough runs ({len(trend.points)} of {fewest_runs()})"
    values = {point.value for point in trend.points}
    return "not compared: values of 0" if len(values) > 1 and min(values) <= 0 else ""


def trends_section(rows: Sequence[TrendRow]) -> Section:
    machines = {row.trend.platform for row in rows}
    return section_of_rows(rows, _COLUMNS if len(machines) < 2 else [_MACHINE, *_COLUMNS[1:]])


def points_section(trends: Sequence[Trend]) -> Section:
    machines = {trend.platform for trend in trends}
    rows = [(trend, point) for trend in trends for point in trend.points]
    return section_of_rows(rows, _POINT_COLUMNS if len(machines) < 2 else [_POINT_MACHINE, *_POINT_COLUMNS[1:]])


def _value(row: TrendRow, value: float) -> Cell:
    return Cell(value, format_quantity(value, row.trend.unit))


def _level_change(row: TrendRow) -> Cell:
    return Cell(None if row.ratio is None else row.ratio - 1, "-" if row.ratio is None else format_change(row.ratio))


def _since(row: TrendRow) -> Cell:
    at = "" if row.change is None else row.trend.points[row.change.index].at
    return Cell(at or None, at[:10])


def _commit(commit: str) -> Cell:
    shown = commit.removesuffix("-dirty")[:10]
    return Cell(commit or None, f"{shown}-dirty" if commit.endswith("-dirty") else shown)


_MACHINE: Column[TrendRow] = Column("platform", str, "machine", lambda row: row.trend.platform)
"""Where there are several."""

_COLUMNS: list[Column[TrendRow]] = [
    Column("platform", str, None, lambda row: row.trend.platform),
    Column("test", str, "test", lambda row: Cell(row.trend.nodeid, row.trend.title)),
    Column("metric", str, "metric", lambda row: row.trend.metric),
    Column("unit", str, None, lambda row: row.trend.unit),
    Column("runs", int, "runs", lambda row: len(row.trend.points)),
    Column("before", float, "before", lambda row: _value(row, row.first)),
    Column("after", float, "after", lambda row: _value(row, row.last)),
    Column("change", float, "change", _level_change),
    Column("kind", str, "", lambda row: row.kind),
    Column("since", str, "since", _since),
    Column("last_before", str, "last before", lambda row: _commit(row.commits[0])),
    Column("first_after", str, "first after", lambda row: _commit(row.commits[1])),
]

_OfTrend = tuple[Trend, Point]

_POINT_MACHINE: Column[_OfTrend] = Column("platform", str, "machine", lambda row: row[0].platform)

_POINT_COLUMNS: list[Column[_OfTrend]] = [
    Column("platform", str, None, lambda row: row[0].platform),
    Column("test", str, "test", lambda row: Cell(row[0].nodeid, row[0].title)),
    Column("metric", str, "metric", lambda row: row[0].metric),
    Column("unit", str, None, lambda row: row[0].unit),
    Column("at", str, "at", lambda row: row[1].at),
    Column("commit", str, "commit", lambda row: _commit(row[1].commit)),
    Column("value", float, "value", lambda row: Cell(row[1].value, format_quantity(row[1].value, row[0].unit))),
]


class ControlRow(NamedTuple):
    result: CaseResult
    control: Control
    verdict: Finding


def _change(ratio: float | None) -> Cell:
    return Cell(ratio, "-" if ratio is None else format_change(ratio))


CONTROL: TableKind[ControlRow] = TableKind(
    summary="Injected slowdowns (positive control): which were detected.",
    rows=lambda results: [ControlRow(r, r.control, v) for r in results if r.control for v in r.control.verdicts],
    columns=[
        TEST,
        Column("metric", str, "metric", lambda row: Cell(row.verdict.metric, metric_text(row.verdict))),
        Column("injected", float, "injected", lambda row: _change(planted_ratio(row.control, row.verdict))),
        Column("measured", float, "measured", lambda row: _change(row.verdict.ratio)),
        Column("detected", bool, "detected", lambda row: Cell(yes := is_found(row.verdict), "yes" if yes else "no")),
        Column("step", str, "step", lambda row: row.control.step),
        Column("launches", int, "launches", lambda row: row.control.launches),
        Column("seconds", float, "time", lambda row: seconds(row.control.took_s)),
    ],
    needs="a run with --distbench-control",
)


class VerdictRow(NamedTuple):
    result: CaseResult
    verdict: Finding


def _texts(row: VerdictRow) -> tuple[str, str]:
    """Both sides; of the communication, which is no number, what is sent."""
    if row.verdict.metric == FINGERPRINT:
        return communication_texts(row.result)
    return current(row.verdict), reference(row.verdict)


def _rows(results: Sequence[CaseResult]) -> list[VerdictRow]:
    judged = [VerdictRow(result, v) for result in results for v in result.verdicts if v.is_judged]
    return sorted(judged, key=lambda row: severity_order(row.verdict.code))


VERDICTS: TableKind[VerdictRow] = TableKind(
    summary="Every judged metric.",
    rows=_rows,
    columns=[
        Column("verdict", str, "verdict", lambda row: row.verdict.kind),
        Column("code", str, "reason", lambda row: row.verdict.code),
        Column("test", str, "test", lambda row: Cell(row.result.nodeid, row.result.test_name)),
        Column("metric", str, "metric", lambda row: Cell(row.verdict.metric, metric_text(row.verdict))),
        Column("unit", str, None, lambda row: row.verdict.unit),
        Column("current", float, "this run", lambda row: Cell(row.verdict.current, _texts(row)[0])),
        Column("baseline", float, "baseline", lambda row: Cell(row.verdict.baseline, _texts(row)[1])),
        Column(
            "statistic", str, "statistic", lambda row: row.verdict.statistic if row.verdict.ratio is not None else ""
        ),
        Column("ratio", float, "change", lambda row: Cell(row.verdict.ratio, change(row.verdict))),
        Column("threshold", float, "threshold", lambda row: Cell(row.verdict.threshold, threshold(row.verdict))),
        Column("mde", float, "MDE", lambda row: Cell(row.verdict.mde, mde(row.verdict))),
        Column("at_least", float, None, lambda row: tightest(row.verdict.bounds, "least")),
        Column("at_most", float, None, lambda row: tightest(row.verdict.bounds, "most")),
        Column("launches", int, "n", lambda row: row.verdict.launches),
        Column("reason", str, None, lambda row: row.verdict.reason),
    ],
)
