"""Run records as pandas data frames, for notebooks and one-off questions. Not imported by the plugin."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from pytest_distbench.errors import ConfigurationError, show
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample, tightest
from pytest_distbench.records.run import CaseResult, RunRecord
from pytest_distbench.report.tables.table import ColumnType, DataTable
from pytest_distbench.store.files import read_run_record

_OF_LAUNCH: Mapping[str, ColumnType] = {
    "test": str, "case": str, "world_size": int, "backend": str, "launcher": str, "platform": str, "launch": int,
    "metric": str, "unit": str, "better": str,
}  # fmt: skip

RUN_COLUMNS: Mapping[str, ColumnType] = {
    **_OF_LAUNCH, "value": float, "verdict": str, "at_least": float, "at_most": float
}  # fmt: skip
"""Columns of a run record; ``metric`` is the name alone, and each key of ``at`` has a column after these."""

COLUMNS = tuple(RUN_COLUMNS)


def read_run(path: str | Path) -> pd.DataFrame:
    """Read a run record into one row per case, launch and metric.

    Args:
        path: a file written by ``--distbench-json``.

    Returns:
        The columns of :data:`COLUMNS`, and one column per ``at`` key (``message_bytes``, ``seed``), NaN where a metric
        has none. ``value`` is in base units: seconds, bytes.

    Raises:
        ConfigurationError: ``path`` is no path.
        StoredFileError: the file is no run record.
    """
    return _frame(run_rows(_read("read_run", path)))


def read_distributions(path: str | Path) -> pd.DataFrame:
    """Read the distributions of iterations that a run record keeps for each launch.

    Args:
        path: a file written by ``--distbench-json``.

    Returns:
        Up to 41 rows for a metric of a launch, from ``quantile`` 0, the minimum, to 1, the maximum; all iterations if
        there are at most 41. Values have four digits. The other columns are those of :func:`read_run` that identify
        the metric and the launch. Series that a record keeps whole, and runs of older versions, have no rows.

    Raises:
        ConfigurationError: ``path`` is no path.
        StoredFileError: the file is no run record.
    """
    return _frame(distribution_rows(_read("read_distributions", path)))


def _read(caller: str, path: str | Path) -> RunRecord:
    if not isinstance(path, str | os.PathLike):
        raise ConfigurationError(f"{caller}: path={show(path)}; wanted the path of a file that --distbench-json wrote")
    return read_run_record(Path(path))


def _frame(table: DataTable) -> pd.DataFrame:
    return pd.DataFrame([list(row) for row in table.rows], columns=list(table.columns))


def run_rows(record: RunRecord) -> DataTable:
    """A run record as a table: a row for each metric of a launch, a column for each key of ``at``."""
    axes, rows = _axes_of(record), []
    for result in record.results:
        verdicts = {v.metric: v for v in result.verdicts}
        for launch in result.launches:
            for m in launch.measurements:
                verdict = verdicts.get(m.key) or verdicts.get(m.key_over_seeds)
                said, bounds = (verdict.kind, verdict.bounds) if verdict is not None else ("", [])
                limits = tightest(bounds, "least"), tightest(bounds, "most")
                rows.append((*_of_launch(result, launch, m), m.value, said, *limits, *_points(m, axes)))
    return DataTable({**RUN_COLUMNS, **axes}, rows)


def distribution_rows(record: RunRecord) -> DataTable:
    """The distributions of iterations in a run record as a table, with the same columns for ``at``."""
    axes = _axes_of(record)
    rows = [
        (*_of_launch(result, launch, m), place / max(1, len(m.values) - 1), value, *_points(m, axes))
        for result in record.results
        for launch in result.launches
        for m in launch.measurements
        if m.spread is not None and m.spread.n and not METRIC_KINDS[m.better].keeps_series
        for place, value in enumerate(m.values)
    ]
    return DataTable({**_OF_LAUNCH, "quantile": float, "value": float, **axes}, rows)


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
