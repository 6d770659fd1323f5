"""TOML files of users: what is wrong with one is told with its file and its key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_distbench.errors import StoredFileError
from pytest_distbench.records.wanted import text, whole
from pytest_distbench.store.toml_file import TomlTable, read_toml


def read(tmp_path: Path, content: str | bytes) -> TomlTable:
    path = tmp_path / "a.toml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_toml(path, next_step="Write it anew")


def test_keys_are_taken_one_by_one_and_tables_by_their_names(tmp_path: Path) -> None:
    table = read(tmp_path, 'name = "a"\n[node.big]\nranks = 8\n[node.small]\nranks = 1\n')

    assert table.take("name", text()) == "a"
    assert table.take_if("title", text()) is None
    assert {name: inner.take("ranks", whole(1)) for name, inner in table.tables("node")} == {"big": 8, "small": 1}
    assert list(table.tables("none")) == []
    table.end()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "name: wanted printable text, not empty; found nothing. Write it anew"),
        ("name = 3", "name: wanted printable text, not empty; found 3"),
        ('name = "a"\nnode = 3', "node: wanted tables [node.NAME]; found 3"),
        ('name = "a"\nnode.big = 3', "node.big: wanted a table [node.NAME]; found 3"),
        ('name = "a"\n[node.big]\nranks = 0', "node.big.ranks: wanted a whole number of at least 1"),
        ('name = "a"\n[node.big]\nranks = 1\nrank = 1', "node.big.rank: wanted one of the keys ranks; found a key"),
        ('name = "a"\nnam = "b"', "nam: wanted one of the keys name, node; found a key that is none of them"),
        ("name = ", "is no TOML: Invalid value (at "),
        (b"name = '\xff'", "is no TOML: 'utf-8' codec"),
    ],
)
def test_what_is_wrong_is_told_with_its_file_and_its_key(tmp_path: Path, content: str | bytes, problem: str) -> None:
    with pytest.raises(StoredFileError, match=re.escape(f"{tmp_path / 'a.toml'}: {problem}")):
        take_all(read(tmp_path, content))


def take_all(table: TomlTable) -> None:
    table.take("name", text())
    for _, inner in table.tables("node"):
        inner.take("ranks", whole(1))
        inner.end()
    table.end()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoredFileError, match=r"none\.toml: .*Write it anew"):
        read_toml(tmp_path / "none.toml", next_step="Write it anew")
