"""Archives of data sets: only the files of the set come out, and damage is named."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_distbench.errors import DataError
from pytest_distbench.workloads.data.archives import unpack

WANTED = {"a.bin", "b.bin"}
CONTENT = {"set/a.bin": os.urandom(50_000), "set/inner/b.bin": b"b" * 10, "set/readme": b"read me"}


def make(archive: Path, files: dict[str, bytes]) -> Path:
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as packed:
            for name, content in files.items():
                packed.writestr(name, content)
    else:
        with tarfile.open(archive, f"w:{archive.suffix[1:]}") as tape:
            for name, content in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                tape.addfile(entry, io.BytesIO(content))
    return archive


def unpacked(archive: Path, folder: Path) -> dict[str, bytes]:
    folder.mkdir(exist_ok=True)
    unpack(archive, WANTED, folder)
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["set.tar.gz", "set.tar.bz2", "set.zip"])
def test_the_wanted_files_come_out_wherever_they_lie(tmp_path: Path, name: str) -> None:
    archive = make(tmp_path / name, CONTENT)

    assert unpacked(archive, tmp_path / "to") == {"a.bin": CONTENT["set/a.bin"], "b.bin": b"b" * 10}


@pytest.mark.parametrize("name", ["set.tar.gz", "set.zip"])
@pytest.mark.parametrize("path", ["../a.bin", "/tmp/a.bin", "x/../../a.bin", "to/../a.bin"])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str, path: str) -> None:
    archive = make(tmp_path / name, {path: b"hostile", "../evil.py": b"hostile"})

    assert unpacked(archive, tmp_path / "to") == {"a.bin": b"hostile"}
    assert {entry.name for entry in tmp_path.iterdir()} == {name, "to"}


def test_links_and_devices_are_left_where_they_are(tmp_path: Path) -> None:
    archive = tmp_path / "set.tar"
    with tarfile.open(archive, "w") as tape:
        for name, kind in (("a.bin", tarfile.SYMTYPE), ("b.bin", tarfile.FIFOTYPE), ("x/a.bin", tarfile.LNKTYPE)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "/etc/passwd"
            tape.addfile(entry)

    assert unpacked(archive, tmp_path / "to") == {}


@pytest.mark.parametrize("name", ["set.tar.gz", "set.zip"])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[:-6],
        lambda content: content[:3],
        lambda content: b"",
        lambda content: b"<html>404</html>",
        lambda content: content[:20_000] + bytes([content[20_000] ^ 1]) + content[20_001:],
    ],
    ids=["half", "cut at the end", "cut at the start", "empty", "a page", "a bit"],
)
def test_a_damaged_archive_is_named(tmp_path: Path, name: str, spoil: Callable[[bytes], bytes]) -> None:
    archive = make(tmp_path / name, CONTENT)
    archive.write_bytes(spoil(archive.read_bytes()))

    with pytest.raises(DataError, match=rf"{name}, .*: wanted a whole archive, found .*the file was cut off, or is"):
        unpacked(archive, tmp_path / "to")
