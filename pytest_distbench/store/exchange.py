"""The store as one file. JSON lines hold whole entries and can be read back; tables hold one value a row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from pytest_distbench.errors import StoredFileError
from pytest_distbench.store.baselines import BASELINE_FILES, MAX_FILE_BYTES, BaselineFile, BaselineStore
from pytest_distbench.store.files import open_regular

_WANTED = (
    "Give what 'distbench baseline export --format json' wrote, or the folder of a store; with --as bounds or "
    "--as baseline the output of nccl-tests or rccl-tests"
)


def write_json(files: Iterable[BaselineFile], out: BinaryIO) -> None:
    """One entry a line, as it is stored."""
    out.writelines(msgspec.json.encode(file, order="sorted") + b"\n" for file in files)


def entries_of(source: Path) -> Iterator[tuple[str, BaselineFile]]:
    """The entries of an exported JSON file, or of another store's folder, one at a time, and where each stands."""
    if source.is_dir():
        for platform in BaselineStore(source, "").platforms():
            yield from ((f"{source}, {platform}", file) for file in BaselineStore(source, platform).read_all())
        return
    try:
        with open_regular(source, next_step=_WANTED) as lines:
            number = 0
            while line := lines.readline(MAX_FILE_BYTES + 1):
                number += 1
                place = f"{source}:{number}"
                yield place, BASELINE_FILES.parse(line, Path(place), next_step=_WANTED)
    except OSError as error:
        raise StoredFileError(source, f"cannot read: {error.strerror or error}", _WANTED) from error
