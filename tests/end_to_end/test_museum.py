"""The museum: published silent bugs of elastic training are named by their row, and a clean change by none."""

from __future__ import annotations

import re
from pathlib import Path

import museum
import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "museum.md").read_text()
BY_NAME = {exhibit.name: exhibit for exhibit in museum.EXHIBITS}


def test_each_exhibit_is_planted_once_and_has_a_thread_of_its_own() -> None:
    planted = re.findall(r'^@planted\("(.+)"\)', museum.TRAINING.read_text(), re.MULTILINE)
    threads = [exhibit.thread for exhibit in museum.EXHIBITS]

    assert sorted(planted) == sorted(BY_NAME)
    assert len(set(threads)) == len(threads) == len(BY_NAME)
    assert [t for t in threads if not re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+", t)] == []


def test_the_page_has_each_exhibit_with_its_thread_and_its_row() -> None:
    lines = dict(re.findall(r"^\| ([^|]+) \| (\[.*) \|$", PAGE, re.MULTILINE))

    assert lines.keys() == BY_NAME.keys()
    assert [e.name for e in museum.EXHIBITS if f"({e.thread})" not in lines[e.name]] == []
    assert [e.name for e in museum.EXHIBITS if not lines[e.name].endswith(f"| `{e.row}`")] == []


@pytest.mark.spawn
def test_an_exhibit_is_named_by_its_row_and_a_clean_change_by_none(tmp_path: Path) -> None:
    named = museum.show(BY_NAME["stale lr of a joiner"], tmp_path)
    quiet = museum.go_through(museum.clean_job(0, 1), tmp_path, seed=0)

    assert (named.trouble, named.changes) == ("", 1)
    assert "its first step has the learning rates [0.004], and that of rank 0" in named.words
    assert (quiet.red, quiet.trouble, quiet.changes) == ([], "", 1)
