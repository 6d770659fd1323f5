"""The index of a folder of run records: what their metrics were, so that thousands of records are read once.

It is a SQLite file in the folder, and made of the records alone: whoever deletes it loses time.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path

from pytest_distbench.errors import DistbenchError, StoredFileError
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.trend import History, Point, Trend
from pytest_distbench.store.run_record import read_run_record

NAME = ".distbench-history.sqlite"
SCHEMA = 1
"""Of the index: one of another is made anew."""

_PATIENCE_S = 60.0
"""For another process that is writing the index."""

_KEY = "platform, test, name, metric, unit, better"
_SERIES = f"{_KEY}, title, nodeid"
_TABLES = f"""
CREATE TABLE record (id INTEGER PRIMARY KEY, path TEXT UNIQUE, mtime_ns INTEGER, size INTEGER, at TEXT, version TEXT,
    problem TEXT);
CREATE TABLE series (id INTEGER PRIMARY KEY, platform TEXT, test TEXT, name TEXT, metric TEXT, unit TEXT, better TEXT,
    title TEXT, nodeid TEXT, UNIQUE ({_KEY}));
CREATE TABLE point (series INTEGER, record INTEGER, value REAL, PRIMARY KEY (series, record)) WITHOUT ROWID;
"""


def read_history(folder: Path, *, last: int) -> History:
    """The metrics of so many run records of a folder and the folders below, the last ones. Brings its index up to date.

    Raises:
        DistbenchError: it is no folder.
    """
    if not folder.is_dir():
        raise DistbenchError(f"{folder} is not a folder: give one that holds run records, written by --distbench-json")
    with contextlib.closing(_open(folder / NAME)) as index:
        _bring_up_to_date(index, folder)
        return _read(index, last)


def _open(path: Path) -> sqlite3.Connection:
    """The index: made anew where it cannot be read, and in memory where its folder cannot be written."""
    try:
        try:
            return _connected(path)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            path.unlink()
            return _connected(path)
    except (sqlite3.OperationalError, OSError):
        return _connected(":memory:")


def _connected(path: Path | str) -> sqlite3.Connection:
    """The index with its tables.

    Raises:
        sqlite3.OperationalError: it cannot be opened or written.
        sqlite3.DatabaseError: it is broken, or of another schema.
    """
    index = sqlite3.connect(path, timeout=_PATIENCE_S)
    try:
        index.execute("PRAGMA synchronous = OFF")  # what a power failure breaks is made anew
        [schema] = index.execute("PRAGMA user_version").fetchone()
        if schema not in (0, SCHEMA) or index.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise sqlite3.DatabaseError(f"of schema {schema}, or broken")
        if not schema:
            index.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {SCHEMA}; COMMIT;")
    except sqlite3.Error:
        index.close()
        raise
    return index


def _files(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Every ``.json`` below, but for hidden folders, by its path from there."""
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.endswith(".json"):
                path = os.path.join(where, name)
                with contextlib.suppress(OSError):  # taken away meanwhile
                    yield os.path.relpath(path, folder), os.stat(path)


def _bring_up_to_date(index: sqlite3.Connection, folder: Path) -> None:
    """Read the records that are new or were written again; forget those that are gone."""
    rows = index.execute("SELECT path, mtime_ns, size FROM record")
    known = {path: (mtime_ns, size) for path, mtime_ns, size in rows}
    there = {path: (found.st_mtime_ns, found.st_size) for path, found in _files(folder)}
    stale = [path for path, found in known.items() if there.get(path) != found]
    with index:
        for path in stale:
            index.execute("DELETE FROM point WHERE record = (SELECT id FROM record WHERE path = ?)", (path,))
            index.execute("DELETE FROM record WHERE path = ?", (path,))
    for path in sorted(there.keys() - (known.keys() - set(stale))):
        with index:  # one by one: who is interrupted goes on from there
            _add(index, folder, path, *there[path])


def _add(index: sqlite3.Connection, folder: Path, path: str, mtime_ns: int, size: int) -> None:
    try:
        record = read_run_record(folder / path)
    except StoredFileError as error:
        record, problem = None, str(error)
    facts = (record.started, record.commit, "") if record is not None else ("", "", problem)
    number = index.execute(
        "INSERT INTO record (path, mtime_ns, size, at, version, problem) VALUES (?, ?, ?, ?, ?, ?)",
        (path, mtime_ns, size, *facts),
    ).lastrowid
    for series, value in _values(record.results if record is not None else ()):
        [(of,)] = index.execute(
            f"INSERT INTO series ({_SERIES}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT ({_KEY}) "
            "DO UPDATE SET title = excluded.title, nodeid = excluded.nodeid RETURNING id",
            series,
        ).fetchall()
        index.execute("INSERT OR REPLACE INTO point VALUES (?, ?, ?)", (of, number, value))


def _values(results: Iterable[CaseResult]) -> Iterator[tuple[tuple[str, ...], float]]:
    """The columns of a series, see :data:`_SERIES`, and its value, of each metric of each case."""
    for result in results:
        measured: dict[str, list[Measurement]] = {}
        for launch in result.launches:
            if launch.outcome == "passed":
                for measurement in launch.measurements:
                    measured.setdefault(measurement.key, []).append(measurement)
        case = result.case
        for metric, found in measured.items():
            values = [m.value for m in found if m.value is not None]
            if values:
                key = result.environment.platform, case.test, case.key, metric, found[0].unit, found[0].better
                yield (*key, case.title, result.nodeid), float(statistics.median(values))


def _read(index: sqlite3.Connection, last: int) -> History:
    runs = index.execute(
        "SELECT id, at, version FROM (SELECT * FROM record WHERE problem = '' ORDER BY at DESC, path DESC LIMIT ?) "
        "ORDER BY at, path",
        (last,),
    ).fetchall()
    problems = [row[0] for row in index.execute("SELECT problem FROM record WHERE problem != '' ORDER BY path")]
    if not runs:
        return History(records=0, problems=problems)
    numbers, times, commits = zip(*runs, strict=True)
    places = {number: place for place, number in enumerate(numbers)}
    points: dict[int, list[tuple[int, float]]] = {}
    for series, number, value in index.execute("SELECT series, record, value FROM point"):
        if number in places:
            points.setdefault(series, []).append((places[number], value))
    rows = index.execute(f"SELECT id, {_SERIES} FROM series ORDER BY {_KEY}")
    trends = [
        Trend(
            platform=platform, test=test, case=name, title=title, nodeid=nodeid,
            metric=metric, unit=unit, better=better,
            points=[Point(times[place], commits[place], value) for place, value in sorted(points[number])],
        )
        for number, platform, test, name, metric, unit, better, title, nodeid in rows
        if number in points
    ]  # fmt: skip
    return History(records=len(runs), first=times[0], last=times[-1], trends=trends, problems=problems)
