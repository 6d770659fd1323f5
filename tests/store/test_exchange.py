"""The store as one file: what is written is read back, and what is no entry is named by its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.stores import KEY, PLATFORM, TEST, entry

from pytest_distbench.errors import StoredFileError
from pytest_distbench.store.baselines import SCHEMA, BaselineFile, BaselineStore
from pytest_distbench.store.exchange import entries_of, write_json

FILE = BaselineFile(schema=SCHEMA, test=TEST, platform=PLATFORM, key=KEY, entry=entry(1.0, 2.0, tolerance=0.5))


def test_json_lines_are_read_back_whole(tmp_path: Path) -> None:
    with (tmp_path / "all.json").open("wb") as out:
        write_json([FILE, FILE], out)

    assert len((tmp_path / "all.json").read_text().splitlines()) == 2
    assert list(entries_of(tmp_path / "all.json")) == [(f"{tmp_path / 'all.json'}:{n}", FILE) for n in (1, 2)]


def test_a_folder_is_read_platform_by_platform(tmp_path: Path) -> None:
    for platform in ("b", "a"):
        BaselineStore(tmp_path, platform).write(TEST, KEY, FILE.entry)

    assert [file.platform for _, file in entries_of(tmp_path)] == ["a", "b"]


def test_a_line_that_is_no_entry_is_named_after_those_before_it(tmp_path: Path) -> None:
    with (tmp_path / "all.json").open("wb") as out:
        write_json([FILE], out)
        out.write(b"{}\n")
    entries = entries_of(tmp_path / "all.json")

    assert next(entries)[1] == FILE
    with pytest.raises(StoredFileError, match=r"all\.json:2.*Give what 'distbench baseline export"):
        next(entries)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoredFileError, match="cannot read: No such file"):
        list(entries_of(tmp_path / "none.json"))
