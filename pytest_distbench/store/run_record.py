"""The file ``--distbench-json`` writes: every case, metric, launch and verdict of a run."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec

from pytest_distbench.errors import StoredFileError
from pytest_distbench.records.run import RunRecord

SCHEMA = 1
"""Version of the file format. 1: first."""

MAX_FILE_BYTES = 512 * 2**20
"""A larger file is refused before it is read."""


class _Head(msgspec.Struct):
    schema: int


def write_run_record(path: Path, record: RunRecord) -> None:
    """Write the record atomically.

    Raises:
        StoredFileError: the file cannot be written; an older one is as it was.
    """
    data = msgspec.json.format(msgspec.json.encode(record), indent=1)
    name = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(name)
        raise StoredFileError(
            path, f"cannot write: {error.strerror or error}", "Give --distbench-json a writable place"
        ) from error


def read_run_record(path: Path) -> RunRecord:
    """Read a record back, strictly.

    Raises:
        StoredFileError: unreadable, not a run record, or of a later schema.
    """
    hint = "Write one with pytest --distbench-json FILE"
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise StoredFileError(path, f"larger than {MAX_FILE_BYTES // 2**20} MiB", hint)
        data = path.read_bytes()
        schema = msgspec.json.decode(data, type=_Head).schema
        if schema > SCHEMA:
            raise StoredFileError(
                path, f"written in schema {schema}, this version reads up to {SCHEMA}", "Upgrade pytest-distbench"
            )
        return msgspec.json.decode(data, type=RunRecord)
    except OSError as error:
        raise StoredFileError(path, f"cannot read: {error.strerror or error}", "Check the path") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoredFileError(path, f"not a run record: {error}", hint) from error
