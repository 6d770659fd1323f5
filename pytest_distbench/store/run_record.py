"""The records of runs: the file that ``--distbench-json`` writes, and how metrics went over a folder of them."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from pathlib import Path

from pytest_distbench.errors import DistbenchError, StoredFileError
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.run import CaseResult, History, Point, RunRecord, Trend
from pytest_distbench.store.files import FileKind

SCHEMA = 6
"""Version of the file format."""

RUN_RECORDS = FileKind(
    name="run record",
    record=RunRecord,
    schema=SCHEMA,
    max_bytes=512 * 2**20,
    next_step="Write one with pytest --distbench-json FILE",
    where="Give --distbench-json or --distbench-out a writable place",
)


def write_run_record(path: Path, record: RunRecord) -> None:
    RUN_RECORDS.write(path, record)


def read_run_record(path: Path) -> RunRecord:
    return RUN_RECORDS.read(path)


def read_history(folder: Path, *, last: int) -> History:
    """The metrics of so many run records of a folder and the folders below, the last ones by their start.

    Raises:
        DistbenchError: it is no folder.
    """
    if not folder.is_dir():
        raise DistbenchError(f"{folder} is not a folder: give one that holds run records, written by --distbench-json")
    runs: list[tuple[str, str, RunRecord]] = []
    problems = []
    for path in sorted(_files(folder)):
        try:
            record = read_run_record(path)
        except StoredFileError as error:
            problems.append(str(error))
        else:
            runs.append((record.started, str(path), record))
    runs = sorted(runs, key=lambda run: run[:2])[-last:]
    trends: dict[tuple[str, ...], Trend] = {}
    for at, _, record in runs:
        is_slow = "full" in record.settings
        for trend, value in (value for result in record.results for value in _values(result)):
            key = (trend.platform, trend.test, trend.case, trend.metric, trend.unit, trend.better)
            known = trends.setdefault(key, trend)
            known.is_slow = is_slow and (known.is_slow or not known.points)
            known.points.append(Point(at, record.commit, value))
    times = [run[0] for run in runs] or [""]
    found = [trends[key] for key in sorted(trends)]
    return History(records=len(runs), first=times[0], last=times[-1], trends=found, problems=problems)


def _files(folder: Path) -> Iterator[Path]:
    """Every ``.json`` below, but for hidden folders."""
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(where, name) for name in names if name.endswith(".json"))


def _values(result: CaseResult) -> Iterator[tuple[Trend, float]]:
    """The median of the launches that passed, of each metric."""
    measured: dict[str, list[Sample]] = {}
    for launch in result.launches:
        for measurement in launch.measurements if launch.outcome == "passed" else ():
            measured.setdefault(measurement.key, []).append(measurement)
    for metric, found in measured.items():
        if values := [m.value for m in found if m.value is not None]:
            case = result.case
            trend = Trend(
                platform=result.environment.platform,
                test=case.test,
                case=case.key,
                title=case.title,
                nodeid=result.nodeid,
                world_size=case.world_size,
                metric=metric,
                unit=found[0].unit,
                better=found[0].better,
            )
            yield trend, float(statistics.median(values))
