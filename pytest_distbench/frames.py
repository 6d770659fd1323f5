"""Run records as pandas data frames, for notebooks and one-off questions. Not imported by the plugin."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd

from pytest_distbench.errors import ConfigurationError, show
from pytest_distbench.store.rows import RUN_COLUMNS, run_rows
from pytest_distbench.store.run_record import read_run_record

COLUMNS = tuple(RUN_COLUMNS)


def read_run(path: str | Path) -> pd.DataFrame:
    """Read a run record into one row per case, launch and metric.

    Args:
        path: a file written by ``--distbench-json``.

    Returns:
        The columns of :data:`COLUMNS`, and one column per ``at`` key (``message_bytes``, ``seed``), NaN where a metric
        has none. ``value`` is in base units: seconds, bytes.

    Raises:
        ConfigurationError: it is no path.
        StoredFileError: the file is no run record.
    """
    if not isinstance(path, str | os.PathLike):
        raise ConfigurationError(f"read_run: path={show(path)}; wanted the path of a file that --distbench-json wrote")
    table = run_rows(read_run_record(Path(path)))
    return pd.DataFrame([list(row) for row in table.rows], columns=list(table.columns))
