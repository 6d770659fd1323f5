"""Files that nccl-tests and rccl-tests left, text or JSON, whoever wrote which."""

from __future__ import annotations

from pathlib import Path

from pytest_distbench.errors import StoredFileError
from pytest_distbench.records.perf_output import PerfOutput
from pytest_distbench.store.files import open_regular
from pytest_distbench.store.perf_json import read_perf_json
from pytest_distbench.store.perf_text import looks_like_text, read_perf_text

MAX_FILE_BYTES = 64 * 2**20
"""A larger file is no output of these tools."""

KNOWN = (
    "Known are what nccl-tests and rccl-tests print, the JSON of nccl-tests (-J FILE) and of rccl-tests "
    "(-Z json -x FILE), and what 'distbench baseline export' wrote"
)


def read_perf_output(path: Path) -> list[PerfOutput]:
    """The runs in a file, at least one.

    Raises:
        StoredFileError: unreadable, of no format that is known, or damaged; the message has the line.
    """
    try:
        with open_regular(path, next_step=KNOWN) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise StoredFileError(path, f"cannot read: {error.strerror or error}", KNOWN) from error
    if len(data) > MAX_FILE_BYTES:
        raise StoredFileError(path, f"larger than {MAX_FILE_BYTES // 2**20} MiB", KNOWN)
    text = data.decode(errors="replace")
    if text.lstrip().startswith(("{", "[\n{", "[{")):
        return [read_perf_json(text, path)]
    if looks_like_text(text):
        return read_perf_text(text, path)
    raise StoredFileError(path, "of no format that can be imported", KNOWN)
