"""Data sets of the trainings: a module for each format, and one table of sets. Each can generate a small set.

This module has what all formats share: archives, errors of damaged files, reading a text line by line, writing a file
as a whole, and whether an object store can be opened.
"""

from __future__ import annotations

import contextlib
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Collection, Iterator
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, NamedTuple

from pytest_distbench.errors import DataError, error_text

if TYPE_CHECKING:
    import torch

CUT = "the file was cut off"


class Labelled(NamedTuple):
    """Samples (N, ...), and their labels (N,)."""

    inputs: torch.Tensor
    labels: torch.Tensor


class Parts(NamedTuple):
    """The training set and the test set."""

    train: Labelled
    test: Labelled


def damaged(place: str | Path, *, wanted: str, found: str, hint: str = "") -> DataError:
    """Make an error that names the place in a file, what should be there and what is."""
    return DataError(f"{place}: wanted {wanted}, found {found}" + (f": {hint}" if hint else ""))


def require(path: Path) -> Path:
    """Return the path of a file that exists and is not empty."""
    if not path.is_file():
        raise damaged(path, wanted="a file of the data set", found="none")
    if not path.stat().st_size:
        raise damaged(path, wanted="a file of the data set", found="an empty file", hint=CUT)
    return path


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    r"""Lines of a text in UTF-8 with their numbers, from 1. Only ``\n`` ends a line."""
    with require(path).open("rb") as file:
        for number, raw in enumerate(file, 1):
            place = f"{path}, line {number}"
            if not raw.endswith(b"\n"):
                raise damaged(place, wanted="a line that ends", found="the end of the file", hint=CUT)
            if raw.endswith(b"\r\n"):
                raise damaged(place, wanted=r"a line that ends in \n", found=r"\r\n", hint="its lines were converted")
            try:
                line = raw[:-1].decode()
            except UnicodeDecodeError as error:
                found = f"byte 0x{raw[error.start]:02x} at byte {error.start}"
                raise damaged(place, wanted="UTF-8", found=found, hint="it has another encoding") from None
            if "\0" in line or line.startswith("\ufeff"):
                found = "a byte 0x00" if "\0" in line else "a byte order mark"
                raise damaged(place, wanted="UTF-8 text", found=found, hint="it has another encoding")
            yield number, line


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that gets its name when it is complete: readers see the old one, the new one, or none."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as folder:
        whole = Path(folder, path.name)  # a file of the process's own umask: other users may read it
        with whole.open("wb") as file:
            yield file
        whole.replace(path)


_AT_ONCE = 1 << 20


def unpack(archive: Path, wanted: Collection[str], folder: Path) -> None:
    """Copy the files of these names from an archive to a folder, wherever they lie in it, and nothing else.

    So no name leads out of the folder, and no link is made. If several have one name, the first is taken.
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
        raise damaged(f"{archive}, {name}", wanted="a whole archive", found=error_text(error), hint=hint) from None


def _files(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                with packed.open(info) as file:
                    yield PurePosixPath(info.filename).name, file
    else:
        with tarfile.open(archive) as tape:
            for member in tape:
                if member.isfile() and (content := tape.extractfile(member)) is not None:
                    yield PurePosixPath(member.name).name, content
            while tape.fileobj is not None and tape.fileobj.read(_AT_ONCE):
                """To the end of the compressed stream, which is where its checksum stands."""


TO_INSTALL = "for s3:// install pytest-distbench[storage], for others the package of fsspec that knows them"


def why_no_store(url: str) -> str:
    """Why no library here can open a URL, in a clause with the next step, or "" if one can, or may.

    No library is imported, and nothing is connected to.
    """
    from fsspec.registry import known_implementations, registry

    scheme = url.partition("://")[0]
    if scheme in registry:
        return ""
    if scheme not in known_implementations:
        return f"no store is known by {scheme}://; {TO_INSTALL}"
    package = known_implementations[scheme]["class"].partition(".")[0]
    return "" if find_spec(package) is not None else f"{scheme}:// needs the package {package}; {TO_INSTALL}"
