"""The store as one file. JSON lines hold whole entries and can be read back; tables hold one value a row."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TextIO

import msgspec

from pytest_distbench.errors import DistbenchError, StoredFileError
from pytest_distbench.store.baselines import BASELINE_FILES, MAX_FILE_BYTES, BaselineFile, BaselineStore

_WANTED = "Give what 'distbench baseline export --format json' wrote, or the folder of a store"

FORMATS = ("json", "csv", "parquet")

_COLUMNS = {
    "platform": str, "test": str, "key": str, "world_size": int, "backend": str, "launcher": str, "workload": str,
    "metric": str, "unit": str, "better": str, "launch": int, "value": float,
}  # fmt: skip
_BATCH_ENTRIES = 2000


def write_json(files: Iterable[BaselineFile], out: TextIO) -> int:
    """One entry a line, as it is stored; returns how many."""
    number = 0
    for file in files:
        out.write(msgspec.json.encode(file, order="sorted").decode() + "\n")
        number += 1
    return number


def write_csv(files: Iterable[BaselineFile], out: TextIO) -> int:
    """One value of one launch a row, in base units; a launch without a value has an empty cell. Returns the entries."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    number = 0
    for file in files:
        writer.writerows(_rows(file))
        number += 1
    return number


def write_parquet(files: Iterable[BaselineFile], path: Path) -> int:
    """The table of :func:`write_csv` as Parquet, written batch by batch; returns the entries.

    Raises:
        DistbenchError: pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise DistbenchError("export --format parquet needs pyarrow: pip install 'pytest-distbench[parquet]'") from None

    types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
    schema = pyarrow.schema([(name, types[kind]) for name, kind in _COLUMNS.items()])
    number = 0
    remaining = iter(files)
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        while batch := list(islice(remaining, _BATCH_ENTRIES)):
            columns = zip(*(row for file in batch for row in _rows(file)), strict=True)
            writer.write_table(pyarrow.table(list(columns), schema=schema))
            number += len(batch)
    return number


def entries_of(source: Path) -> Iterator[BaselineFile]:
    """The entries of an exported JSON file, or of another store's folder, one at a time.

    Raises:
        StoredFileError: unreadable, or a line or file is no entry; the message says which.
    """
    if source.is_dir():
        for platform in BaselineStore(source, "").platforms():
            yield from BaselineStore(source, platform).read_all()
        return
    try:
        with source.open("rb") as lines:
            number = 0
            while line := lines.readline(MAX_FILE_BYTES + 1):
                number += 1
                yield BASELINE_FILES.parse(line, Path(f"{source}:{number}"), next_step=_WANTED)
    except OSError as error:
        raise StoredFileError(source, f"cannot read: {error.strerror or error}", _WANTED) from error


def _rows(file: BaselineFile) -> Iterator[tuple[object, ...]]:
    entry = file.entry
    case = (file.platform, file.test, file.key, entry.world_size, entry.backend, entry.launcher, entry.workload)
    for key, metric in entry.metrics.items():
        for launch, value in enumerate(metric.launches):
            yield (*case, key, metric.unit, metric.better, launch, value)
