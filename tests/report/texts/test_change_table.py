"""Changes of stored entries: the worst first, a shared note once, and never too many lines."""

from __future__ import annotations

from support.stores import KEY, PLATFORM, entry

from pytest_distbench.records.baseline import BaselineEntry
from pytest_distbench.records.case import EntryName
from pytest_distbench.report.texts.change_table import MOST_ROWS, change_lines, change_markdown
from pytest_distbench.store.changes import EntryChange, entry_change


def change(name: str, old: BaselineEntry | None, new: BaselineEntry | None) -> EntryChange:
    made = entry_change(EntryName(platform=PLATFORM, test=f"{name}.py::{name}", key=KEY), old, new)
    assert made is not None
    return made


def test_the_worst_stand_first() -> None:
    lines = change_lines(
        [change("better", entry(2.0), entry(1.0)), change("worse", entry(1.0), entry(2.0))], unchanged=3
    )

    assert [line.split("[")[0] for line in lines[1:3]] == ["worse.py::worse", "better.py::better"]
    assert lines[-1] == "2 changed, 0 new, 0 removed, 3 unchanged"


def test_entries_that_came_or_went_are_named_with_what_they_hold() -> None:
    lines = change_lines([change("a", None, entry(1.0, 2.0))], unchanged=0)

    assert lines[0] == f"new: a.py::a[{KEY}] (1 metric, 2 launches)"


def test_a_note_that_entries_share_is_told_once() -> None:
    new = entry(1.0, software={"torch": "2.14.0"})
    lines = change_lines([change(name, entry(1.0), new) for name in "ab"], unchanged=0)

    assert lines == ["2 entries: software.torch 2.13.0 -> 2.14.0", "2 changed, 0 new, 0 removed, 0 unchanged"]


def test_more_rows_than_anybody_reads_are_counted() -> None:
    changes = [change(f"t{i}", entry(1.0), entry(2.0)) for i in range(MOST_ROWS + 2)]

    assert "2 more metrics, less worse than these" in change_lines(changes, unchanged=0)
    assert len(change_lines(changes, unchanged=0)) == MOST_ROWS + 3


def test_markdown_begins_with_the_counts() -> None:
    lines = change_markdown([change("a", entry(1.0), entry(2.0))], unchanged=0)

    assert lines[0] == "### baselines: 1 changed, 0 new, 0 removed, 0 unchanged"
    assert lines[2].startswith("| test | metric | old | new |")
