"""What all formats share: archives, lines of text, and how a damaged file is named."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_distbench.errors import DataError
from pytest_distbench.workloads.data import lines_of, unpack, written_whole

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


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("a\u2028b\x85c\x0bd\n\n \ufeffe\n".encode())

    assert list(lines_of(path)) == [(1, "a\u2028b\x85c\x0bd"), (2, ""), (3, " \ufeffe")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"text: wanted a file of the data set, found an empty file: the file was cut off"),
        (b"a\nb", r"text, line 2: wanted a line that ends, found the end of the file: the file was cut off"),
        (b"a\nb\r\nc\n", r"text, line 2: wanted a line that ends in \\n, found \\r\\n: its lines were converted"),
        (b"a\nsch\xf6n\n", r"text, line 2: wanted UTF-8, found byte 0xf6 at byte 3: it has another encoding"),
        (b"a\n\xe2\x82\n", r"text, line 2: wanted UTF-8, found byte 0xe2 at byte 0"),
        ("\ufeffa\n".encode(), r"text, line 1: wanted UTF-8 text, found a byte order mark"),
        ("a\n".encode("utf-16-le"), r"text, line 1: wanted UTF-8 text, found a byte 0x00"),
        (b"a\n\x00\x00\x00\n", r"text, line 2: wanted UTF-8 text, found a byte 0x00"),
    ],
)
def test_what_is_no_whole_text_is_named_with_its_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "text"
    path.write_bytes(content)

    with pytest.raises(DataError, match=message):
        list(lines_of(path))


def test_what_is_not_written_to_its_end_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    path.write_bytes(b"old")

    def write_half() -> None:
        with written_whole(path) as file:
            file.write(b"half")
            file.flush()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()

    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("cache", b"old")]
    with written_whole(path) as file:
        file.write(b"new")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("cache", b"new")]


def test_a_folder_or_nothing_is_no_file(tmp_path: Path) -> None:
    for name in (".", "nothing"):
        with pytest.raises(DataError, match="wanted a file of the data set, found none"):
            list(lines_of(tmp_path / name))
