"""The baseline store: one small JSON file per test function, made for reading diffs and merging.

``<folder>/<platform>/<suite path>/<test function>.json``: keys sorted, one list a line, four significant digits,
no time stamps. Writes are atomic and happen under a lock on the folder, so that a crash, a full disk or a second
run leaves either the old file or the new one.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import msgspec
from filelock import FileLock, Timeout

from pytest_distbench.errors import StoredFileError
from pytest_distbench.records import BaselineEntry, BaselineMetric, Case, LaunchRecord, Record

SCHEMA = 1
"""Version of the file format. 1: first."""

MAX_FILE_BYTES = 16 * 2**20
"""A larger file is not a baseline: it is refused before it is read."""

_LOCK_TIMEOUT_S = 60.0
_NUMBER_LIST = re.compile(r"\[\s+((?:-?[\d.eE+-]+|null)(?:,\s+(?:-?[\d.eE+-]+|null))*)\s+\]")


class BaselineFile(Record, frozen=True, kw_only=True):
    """One file of the store."""

    schema: int
    test: str
    platform: str
    entries: dict[str, BaselineEntry]


class _Head(msgspec.Struct):
    schema: int


class BaselineStore:
    """Baselines of one hardware class below one folder.

    Args:
        folder: the store's root, for example ``baselines/``. Need not exist.
        platform: the hardware class, one folder below it.
    """

    def __init__(self, folder: Path, platform: str) -> None:
        self.folder = folder
        self.platform = platform

    def path(self, test: str) -> Path:
        """The file of a test named ``suites/a/test_b.py::TestC::test_d``; never outside the store.

        Raises:
            StoredFileError: the test's path would leave the store.
        """
        file, _, function = test.partition("::")
        path = PurePosixPath(file)
        is_place = bool(path.name) and not path.is_absolute() and ".." not in path.parts and "\0" not in file
        if not is_place or not re.fullmatch(r"[\w.:-]+", function):
            raise StoredFileError(
                self.folder,
                f"the test {test!r} has no place below the baseline folder",
                "Run pytest from the root directory of the suites",
            )
        name = f"{function.replace('::', '.')}.json"
        return self._inside(self.folder.joinpath(self.platform, path.with_suffix(""), name))

    def read(self, test: str) -> dict[str, BaselineEntry]:
        """Entries of a test by key; empty where there is no file.

        Raises:
            StoredFileError: the file cannot be read, is no baseline, or is of a later schema.
        """
        path = self.path(test)
        return read_file(path).entries if path.exists() else {}

    def write(self, test: str, changes: dict[str, BaselineEntry]) -> Path:
        """Put ``changes`` in place of the entries with the same keys; all others stay as they are.

        Raises:
            StoredFileError: the file could not be read or written; it is as it was before.
        """
        path = self.path(test)
        with self._locked(path):
            content = BaselineFile(
                schema=SCHEMA, test=test, platform=self.platform, entries={**self.read(test), **changes}
            )
            _replace(path, render(content))
        return path

    def _inside(self, path: Path) -> Path:
        """The path, unless a link on its way leads elsewhere."""
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise StoredFileError(
                path, f"a link leads to {path.resolve()}, outside the baseline folder", "Replace the link by a folder"
            )
        return path

    def files(self) -> Iterator[Path]:
        """Every file of this platform, sorted by path."""
        yield from sorted((self.folder / self.platform).rglob("*.json"))

    def platforms(self) -> list[str]:
        """Hardware classes that have baselines in this store."""
        if not self.folder.is_dir():
            return []
        return sorted(p.name for p in self.folder.iterdir() if p.is_dir() and next(p.rglob("*.json"), None))

    @contextlib.contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self._lock_path(), timeout=_LOCK_TIMEOUT_S):
                yield
        except Timeout as error:
            raise StoredFileError(
                path,
                f"another run has held {self._lock_path()} for {_LOCK_TIMEOUT_S:.0f} s",
                "Wait for it to end; the lock goes with its process",
            ) from error
        except OSError as error:
            raise StoredFileError(
                path, f"cannot write: {error.strerror or error}", "The stored baseline is unchanged"
            ) from error

    def _lock_path(self) -> Path:
        """Outside the store, so that nobody commits it."""
        name = hashlib.sha256(os.fsencode(self.folder.resolve())).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"distbench-{os.getuid()}-{name}.lock"


def read_file(path: Path) -> BaselineFile:
    """Read one file of a store, strictly.

    Raises:
        StoredFileError: unreadable, too large, not JSON, wrong fields, or of a later schema.
    """
    hint = "Restore it from version control, or delete it and record it again with --distbench-update"
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise StoredFileError(path, f"larger than {MAX_FILE_BYTES // 2**20} MiB", hint)
        data = path.read_bytes()
    except OSError as error:
        raise StoredFileError(path, f"cannot read: {error.strerror or error}", "Check its permissions") from error
    try:
        schema = msgspec.json.decode(data, type=_Head).schema
        if schema > SCHEMA:
            raise StoredFileError(
                path, f"written in schema {schema}, this version reads up to {SCHEMA}", "Upgrade pytest-distbench"
            )
        return msgspec.json.decode(data, type=BaselineFile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoredFileError(path, f"not a baseline file: {error}", hint) from error


def render(content: BaselineFile) -> bytes:
    """The file's text: sorted keys, two spaces, number lists on one line, a final newline."""
    text = json.dumps(msgspec.to_builtins(content), indent=2, sort_keys=True, ensure_ascii=False)
    one_line = _NUMBER_LIST.sub(lambda m: "[" + re.sub(r",\s+", ", ", m[1]) + "]", text)
    return (one_line + "\n").encode()


def make_entry(
    case: Case, launches: list[LaunchRecord], software: dict[str, str], *, before: BaselineEntry | None = None
) -> BaselineEntry:
    """The entry that stores what ``launches`` measured, without info metrics; tolerances of ``before`` are kept."""
    kept = before.metrics if before is not None else {}
    metrics: dict[str, BaselineMetric] = {}
    for measurement in launches[0].measurements:
        if measurement.better == "info":
            continue
        values = [m.value for launch in launches for m in launch.measurements if m.key == measurement.key]
        exact = measurement.better == "exact"
        metrics[measurement.key] = BaselineMetric(
            better=measurement.better,
            unit=measurement.unit,
            launches=[_stored(v, exact=exact) for v in values],
            tolerance=kept[measurement.key].tolerance if measurement.key in kept else None,
        )
    foreign = sorted(f.foreign_cores for f in launches if f.foreign_cores is not None)
    return BaselineEntry(
        workload=case.workload,
        world_size=case.world_size,
        backend=case.backend,
        launcher=case.launcher,
        params=case.params,
        software=software,
        metrics=metrics,
        foreign_cores=round(foreign[len(foreign) // 2], 2) if foreign else None,
    )


def _stored(value: float | None, *, exact: bool) -> float | None:
    """Four significant digits of a measured value; an exact one whole, and as an integer where it is one."""
    if value is None:
        return None
    if exact:
        return int(value) if value.is_integer() else value
    return float(f"{value:.4g}")


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    for draft in path.parent.glob(f".{glob.escape(path.name)}.*"):
        draft.unlink(missing_ok=True)  # of a writer that was killed: we hold the lock, so nobody else is at work
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
