"""The records of runs: the file that ``--distbench-json`` writes, and how metrics went over a folder of them."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pytest_distbench.errors import DistbenchError, StoredFileError
from pytest_distbench.records.kinds import Better
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.run import CaseResult, History, Point, RunRecord, Trend
from pytest_distbench.store.files import FileKind

SCHEMA = 3
"""Version of the file format."""

RUN_RECORDS = FileKind(
    name="run record",
    record=RunRecord,
    schema=SCHEMA,
    max_bytes=512 * 2**20,
    next_step="Write one with pytest --distbench-json FILE",
    where="Give --distbench-json a writable place",
)


def write_run_record(path: Path, record: RunRecord) -> None:
    """Write the record atomically."""
    RUN_RECORDS.write(path, record)


def read_run_record(path: Path) -> RunRecord:
    return RUN_RECORDS.read(path)


class _Key(NamedTuple):
    platform: str
    test: str
    case: str
    metric: str
    unit: str
    better: Better


class _Value(NamedTuple):
    key: _Key
    title: str
    nodeid: str
    value: float


def read_history(folder: Path, *, last: int) -> History:
    """The metrics of so many run records of a folder and the folders below, the last ones by their start.

    Raises:
        DistbenchError: it is no folder.
    """
    if not folder.is_dir():
        raise DistbenchError(f"{folder} is not a folder: give one that holds run records, written by --distbench-json")
    runs: list[tuple[str, str, str, list[_Value]]] = []
    problems = []
    for path in sorted(_files(folder)):
        try:
            record = read_run_record(path)
        except StoredFileError as error:
            problems.append(str(error))
        else:
            runs.append((record.started, str(path), record.commit, [*_values(record)]))
    runs = sorted(runs, key=lambda run: run[:2])[-last:]
    trends: dict[_Key, Trend] = {}
    for at, _, commit, values in runs:
        for key, title, nodeid, value in values:
            trend = trends.setdefault(key, Trend(**key._asdict(), title=title, nodeid=nodeid))
            trend.points.append(Point(at, commit, value))
    times = [run[0] for run in runs] or [""]
    found = [trends[key] for key in sorted(trends)]
    return History(records=len(runs), first=times[0], last=times[-1], trends=found, problems=problems)


def _files(folder: Path) -> Iterator[Path]:
    """Every ``.json`` below, but for hidden folders."""
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(where, name) for name in names if name.endswith(".json"))


def _values(record: RunRecord) -> Iterator[_Value]:
    """The median of the launches that passed, of each metric of each case."""
    for result in record.results:
        for metric, found in _measured(result).items():
            if values := [m.value for m in found if m.value is not None]:
                case, platform = result.case, result.environment.platform
                key = _Key(platform, case.test, case.key, metric, found[0].unit, found[0].better)
                yield _Value(key, case.title, result.nodeid, float(statistics.median(values)))


def _measured(result: CaseResult) -> dict[str, list[Measurement]]:
    measured: dict[str, list[Measurement]] = {}
    for launch in result.launches:
        if launch.outcome == "passed":
            for measurement in launch.measurements:
                measured.setdefault(measurement.key, []).append(measurement)
    return measured
