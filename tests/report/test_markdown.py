"""Text in a table of Markdown stays in its cell, and is no markup."""

from __future__ import annotations

import pytest

from pytest_distbench.report.markdown import escape_markdown, row_line, table_head


@pytest.mark.parametrize(
    ("text", "safe"), [("a|b", "a\\|b"), ("<i>&", "&lt;i&gt;&amp;"), ("`x`", "'x'"), ("a\nb\x1b", "a b ")]
)
def test_what_could_leave_its_cell_is_taken_out(text: str, safe: str) -> None:
    assert escape_markdown(text) == safe


def test_a_head_has_the_side_of_each_column() -> None:
    assert table_head(("a", "n"), left=1) == ["| a | n |", "|---|---:|"]


def test_a_row_is_safe_too() -> None:
    assert row_line(("a|b", "1")) == "| a\\|b | 1 |"
