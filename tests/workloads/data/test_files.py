"""Files of data sets: what is no text is named with its place, and what is written is whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_distbench.errors import DataError
from pytest_distbench.workloads.data.files import lines_of, written_whole


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


def test_a_folder_or_nothing_is_no_file(tmp_path: Path) -> None:
    for name, found in ((".", "a folder"), ("nothing", "none")):
        with pytest.raises(DataError, match=f"wanted a file of the data set, found {found}"):
            list(lines_of(tmp_path / name))


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
