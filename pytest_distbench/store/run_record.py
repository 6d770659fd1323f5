"""The file that ``--distbench-json`` writes."""

from __future__ import annotations

from pathlib import Path

from pytest_distbench.records.run import RunRecord
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
    """Read a record back, strictly."""
    return RUN_RECORDS.read(path)
