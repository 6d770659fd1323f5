"""Tables of texts are aligned; text in Markdown stays in its cell, is no markup, and reads as it was once rendered."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from pytest_distbench.report.texts.layout import escape_markdown, layout, row_line, table_head

RENDERER = MarkdownIt("gfm-like")
assert RENDERER.linkify is not None
RENDERER.linkify.set({"fuzzy_link": False, "fuzzy_email": False})  # GitHub makes no links of a.py or of //e.org
RENDERER.linkify.add("//", None)


@pytest.mark.parametrize(
    "text",
    [
        "a|b",
        "a\\|b",
        "<i>&amp;</i>",
        "`x`",
        "![x](https://e.org/x.png)",
        "[a](b) [a][b] [^1]",
        "**bold** __bold__ _x_ ~~gone~~ a_b_c $x$",
        "@someone, see #12",
        "http://e.org www.e.org WWW.e.org ftp://e.org mail@e.org",
        "latency[message_bytes=4096,dtype=float32]",
        "&#35; \\* \\",
    ],
)
def test_text_reads_as_it_is_and_is_no_markup(text: str) -> None:
    assert rendered(text) == text


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"])))
def test_any_text_reads_as_it_is(text: str) -> None:
    assert rendered(f"x{text}x") == f"x{text}x"


def test_line_ends_and_control_characters_become_blanks() -> None:
    assert escape_markdown("a\nb\x1b") == "a b "


def test_mentions_and_issues_are_no_links() -> None:
    assert escape_markdown("@you #12") == "@<!-- -->you #<!-- -->12"


def test_a_head_has_the_side_of_each_column() -> None:
    assert table_head(("a", "n"), left=1) == ["| a | n |", "|---|---:|"]


def rendered(text: str) -> str:
    """The one cell of a table of one row, as it is seen."""
    page = RENDERER.render("\n".join([*table_head(("h",), left=1), row_line([text])]))
    cells = re.findall(r"<td>(.*?)</td>", page, re.DOTALL)
    assert len(cells) == 1, page
    shown = cells[0].replace("<!-- -->", "")
    assert "<" not in shown, page
    return html.unescape(shown)


def test_the_first_columns_stand_left_and_the_others_right() -> None:
    assert layout(("name", "unit", "n"), [("a", "s", "12")], left=2) == ["name  unit   n", "a     s     12"]


def test_no_line_ends_in_blanks() -> None:
    assert layout(("a", ""), [("b", "")]) == ["a", "b"]


def test_a_text_can_neither_leave_its_line_nor_begin_a_command() -> None:
    lines = layout(("a",), [("x\n::error file=a::PWNED",), ("::error::x",)])

    assert lines == ["a", "x\\n::error file=a::PWNED", "\\::error::x"]
