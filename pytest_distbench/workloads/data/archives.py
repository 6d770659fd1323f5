"""The files of a data set in the archive that it is published in."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from pytest_distbench.errors import tell
from pytest_distbench.workloads.data.files import CUT, damaged

_AT_ONCE = 1 << 20


def unpack(archive: Path, wanted: Collection[str], folder: Path) -> None:
    """Copy the files of these names to a folder, wherever they lie in the archive, and nothing else.

    So no name in it leads out of the folder, and no link is made. Of several of one name the first is taken.

    Raises:
        DataError: it is no archive, or damaged.
    """
    name = "its beginning"
    try:
        for name, file in _files(archive):
            if name in wanted and not (folder / name).exists():
                with (folder / name).open("wb") as copy:
                    shutil.copyfileobj(file, copy)
    except Exception as error:  # each kind of archive and compression has others
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk
        hint = f"{CUT}, or is damaged"
        raise damaged(f"{archive}, {name}", wanted="a whole archive", found=tell(error), hint=hint) from None


def _files(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The files of an archive, each by its name without folders."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as packed:
            for entry in packed.infolist():
                with packed.open(entry) as file:
                    yield PurePosixPath(entry.filename).name, file
    else:
        with tarfile.open(archive) as tape:
            for member in tape:
                if member.isfile() and (content := tape.extractfile(member)) is not None:
                    yield PurePosixPath(member.name).name, content
            while tape.fileobj is not None and tape.fileobj.read(_AT_ONCE):
                """To the end of the compressed stream, which is where its checksum stands."""
