"""Run records as pandas data frames, for notebooks and one-off questions. Not imported by the plugin."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd

from pytest_distbench.errors import ConfigurationError, show
from pytest_distbench.records.run import RunRecord
from pytest_distbench.store.rows import RUN_COLUMNS, Table, distribution_rows, run_rows
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
    return _frame(run_rows(_read("read_run", path)))


def read_distributions(path: str | Path) -> pd.DataFrame:
    """Read what a run record keeps of the iterations inside its launches.

    Args:
        path: a file written by ``--distbench-json``.

    Returns:
        Up to 41 rows for a metric of a launch, from ``quantile`` 0, its least value, to 1, its largest; of at most 41
        iterations these are all of them. Values have four digits. The other columns are those of :func:`read_run` that
        say which metric of which launch it is. Series that a record keeps whole, and runs of older versions, have none.

    Raises:
        ConfigurationError: it is no path.
        StoredFileError: the file is no run record.
    """
    return _frame(distribution_rows(_read("read_distributions", path)))


def _read(caller: str, path: str | Path) -> RunRecord:
    if not isinstance(path, str | os.PathLike):
        raise ConfigurationError(f"{caller}: path={show(path)}; wanted the path of a file that --distbench-json wrote")
    return read_run_record(Path(path))


def _frame(table: Table) -> pd.DataFrame:
    return pd.DataFrame([list(row) for row in table.rows], columns=list(table.columns))
