"""Run records as pandas data frames, for notebooks and one-off questions. Not imported by the plugin."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement, metric_key
from pytest_distbench.records.run import CaseResult
from pytest_distbench.store.run_record import read_run_record

COLUMNS = (
    "test",
    "case",
    "world_size",
    "backend",
    "launcher",
    "platform",
    "launch",
    "metric",
    "unit",
    "better",
    "value",
    "verdict",
)


def read_run(path: str | Path) -> pd.DataFrame:
    """Read a run record into one row per case, launch and metric.

    Args:
        path: a file written by ``--distbench-json``.

    Returns:
        The columns of :data:`COLUMNS`, and one column per ``at`` key (``message_bytes``, ``seed``), NaN where a metric
        has none. ``value`` is in base units: seconds, bytes.

    Raises:
        StoredFileError: the file is no run record.
    """
    rows = [
        _row(result, launch, measurement)
        for result in read_run_record(Path(path)).results
        for launch in result.launches
        for measurement in launch.measurements
    ]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=list(COLUMNS))


def _row(result: CaseResult, launch: LaunchRecord, measurement: Measurement) -> dict[str, object]:
    case = result.case
    kinds = {v.metric: v.kind for v in result.verdicts}
    over_seeds = metric_key(measurement.name, {k: v for k, v in measurement.at.items() if k != "seed"})
    return {
        "test": case.test,
        "case": case.key.case_id,
        "world_size": case.world_size,
        "backend": case.key.backend,
        "launcher": case.key.launcher,
        "platform": result.environment.platform,
        "launch": launch.index,
        "metric": measurement.name,
        "unit": measurement.unit,
        "better": measurement.better,
        "value": measurement.value,
        "verdict": kinds.get(measurement.key) or kinds.get(over_seeds, ""),
        **measurement.at,
    }
