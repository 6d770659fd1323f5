"""Files of ours: replaced whole, and read strictly."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from pytest_distbench.errors import StoredFileError
from pytest_distbench.records.record import Record
from pytest_distbench.store.files import FileKind, replace_file


class Point(Record, frozen=True, kw_only=True):
    x: float


class Drawing(Record, frozen=True, kw_only=True):
    schema: int
    points: dict[str, Point]
    title: str


DRAWINGS = FileKind(
    name="drawing",
    record=Drawing,
    schema=3,
    max_bytes=2**20,
    next_step="Draw one",
    where="Give a writable place",
    smaller="Draw less",
)
DRAWN = Drawing(schema=3, points={"a": Point(x=1.0)}, title="B")


def write(folder: Path, document: object) -> Path:
    path = folder / "drawing.json"
    path.write_bytes(msgspec.json.encode(document))
    return path


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"schema": 4}, r"written in schema 4, this version reads 3\. Upgrade pytest-distbench"),
        ({"schema": 2}, r"written in schema 2, this version reads 3\. Draw one"),
        ({"schema": 3, "points": {}}, r"not a drawing: Object missing required field `title`\. Draw one"),
        ({"points": {}}, r"not a drawing: Object missing required field `schema`"),
        ([1], r"not a drawing: Expected `object`, got `array`"),
        ({"schema": 3, "points": {"a": {"x": 1}, "b": {"x": ""}}, "title": ""}, r"got `str` - at `\$\.points\[b\]\.x`"),
        ({"schema": 3, "points": {}, "title": "", "more": 1}, r"unknown field `more`"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, document: object, said: str) -> None:
    with pytest.raises(StoredFileError, match=said):
        DRAWINGS.read(write(tmp_path, document))


def test_a_file_that_is_too_large_is_neither_read_nor_written(tmp_path: Path) -> None:
    path = tmp_path / "drawing.json"
    path.write_bytes(b" " * (2**20 + 1))

    with pytest.raises(StoredFileError, match=r"larger than 1 MiB\. Draw one"):
        DRAWINGS.read(path)
    with pytest.raises(StoredFileError, match=r"bytes are too many for a drawing; at most 1048576\. Draw less"):
        DRAWINGS.write(tmp_path / "other.json", Drawing(schema=3, points={}, title="x" * 2**20))
    assert not (tmp_path / "other.json").exists()


def write_half(path: Path, failure: BaseException) -> None:
    with replace_file(path, next_step="Make room") as file:
        file.write(b"half")
        raise failure


def test_a_failure_while_writing_leaves_the_older_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("old")

    with pytest.raises(StoredFileError, match=r"a\.csv: cannot write: No space left on device\. Make room"):
        write_half(path, OSError(28, "No space left on device"))
    with pytest.raises(KeyboardInterrupt):
        write_half(path, KeyboardInterrupt())
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["a pipe", "a device", "a folder", "a socket"])
def test_only_regular_files_are_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "drawing.json"
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    elif kind == "a folder":
        path.mkdir()
    else:
        os.mknod(path, stat.S_IFSOCK | 0o600)

    with pytest.raises(StoredFileError, match=rf"wanted a regular file, found {kind}|cannot read: No such device"):
        DRAWINGS.read(path)


def test_a_file_is_written_through_a_link_which_stays(tmp_path: Path) -> None:
    target = write(tmp_path, {"schema": 3, "points": {}, "title": "old"})
    (tmp_path / "folder").mkdir()
    link = tmp_path / "folder" / "link.json"
    link.symlink_to(target)
    DRAWINGS.write(link, DRAWN)

    assert link.is_symlink()
    assert DRAWINGS.read(target) == DRAWN
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["drawing.json", "folder", "link.json"]

    target.unlink()
    DRAWINGS.write(link, DRAWN)
    assert (link.is_symlink(), DRAWINGS.read(target)) == (True, DRAWN), "a link to nothing makes the file it names"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (os.mkfifo, "nobody reads from this pipe"),
        (os.mkdir, r"Is a directory\. Give a writable place"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
    ],
)
def test_what_cannot_be_written_is_an_error_and_stays(tmp_path: Path, make: Callable[[Path], None], text: str) -> None:
    path = tmp_path / "drawing.json"
    make(path)
    before = path.lstat()

    with pytest.raises(StoredFileError, match=f"cannot write: {text}"):
        DRAWINGS.write(path, DRAWN)
    after = path.lstat()
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (before.st_ino, before.st_mode, before.st_mtime_ns)


def test_a_file_keeps_its_permissions_and_a_new_one_has_the_umasks(tmp_path: Path) -> None:
    private = write(tmp_path, {"schema": 3, "points": {}, "title": "old"})
    private.chmod(0o600)
    before = os.umask(0o027)
    try:
        DRAWINGS.write(private, DRAWN)
        DRAWINGS.write(tmp_path / "new.json", DRAWN)
    finally:
        os.umask(before)

    assert [stat.S_IMODE((tmp_path / n).stat().st_mode) for n in ("drawing.json", "new.json")] == [0o600, 0o640]


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with replace_file(tmp_path / "pipe", next_step="") as file:
        file.write(b"all")
    seen = os.read(reader, 10)
    os.close(reader)

    assert seen == b"all"
    assert (tmp_path / "pipe").is_fifo()


def test_a_file_that_something_is_mounted_on_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers get single files in this way; only root may mount, so the system's answer is faked."""

    def refuse(draft: Path, path: Path) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(StoredFileError, match=r"something is mounted on this file, .* mount its folder"):
        DRAWINGS.write(tmp_path / "run.json", DRAWN)
    assert list(tmp_path.iterdir()) == []


def test_a_name_may_be_as_long_as_the_file_system_takes(tmp_path: Path) -> None:
    DRAWINGS.write(tmp_path / ("x" * 250 + ".json"), DRAWN)

    assert len(list(tmp_path.iterdir())) == 1
