"""Lines for a terminal, and tables of texts, made safe to print."""

from __future__ import annotations

import html
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from pytest_distbench.report import escape, escape_cell, escape_lines, escape_markdown, layout, row_line, table_head


@given(st.text())
def test_printable_text_has_no_control_characters(text: str) -> None:
    shown = escape(text)

    assert all(c == "\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in shown)
    assert escape(shown) == shown


def test_a_text_keeps_its_lines_and_moves_no_cursor() -> None:
    assert escape("a\x1b[2Jb\u202ec\n\td") == "a\\x1b[2Jb\\u202ec\\n\td"

    assert escape_lines("a\n  b\x1b") == "a\n  b\\x1b"

    assert escape_cell("x\n::error::a\r\x9b2J") == "x\\n::error::a\\r\\x9b2J"
    assert escape_cell("::error::a") == "\\::error::a"

    assert escape_markdown("a\nb\x1b") == "a b "

    assert escape_markdown("@you #12") == "@<!-- -->you #<!-- -->12"

    lines = layout(("a",), [("x\n::error file=a::PWNED",), ("::error::x",)])
    assert lines == ["a", "x\\n::error file=a::PWNED", "\\::error::x"]


@pytest.mark.parametrize("command", ["::error file=a::PWNED", "  ::set-output name=a::b", "##[error]PWNED"])
def test_no_line_begins_with_a_command_to_the_ci(command: str) -> None:
    for shown in (escape(command), escape(f"x\n{command}"), *escape_lines(f"Traceback\n{command}").split("\n")):
        assert not shown.lstrip().startswith(("::", "##["))
        assert "\n" not in shown


@pytest.mark.parametrize("command", ["a ##[add-mask]b", "a ##vso[task]b", "a ##teamcity[b]", "###[x]"])
def test_a_command_that_acts_wherever_it_stands_is_broken(command: str) -> None:
    shown = escape(command)

    assert not any(start in shown for start in ("##[", "##vso[", "##teamcity["))
    assert shown.replace("\\", "") == command
    assert escape(shown) == shown


@pytest.mark.parametrize("formula", ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "＝1+1"])  # noqa: RUF001 wide
def test_a_cell_of_a_spreadsheet_is_no_formula(formula: str) -> None:
    assert escape_cell(formula) == f"'{formula}"


@pytest.mark.parametrize("text", ["-5", "+1e-3", "-inf", "a=b", "2-1", "step[seed=1]", ""])
def test_numbers_and_names_in_a_cell_stay_as_they_are(text: str) -> None:
    assert escape_cell(text) == text


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


def test_columns_stand_to_their_sides_without_blanks_at_the_end() -> None:
    assert table_head(("a", "n"), left=1) == ["| a | n |", "|---|---:|"]
    assert layout(("name", "unit", "n"), [("a", "s", "12")], left=2) == ["name  unit   n", "a     s     12"]
    assert layout(("a", ""), [("b", "")]) == ["a", "b"]


def rendered(text: str) -> str:
    """The one cell of a table of one row, as it is seen."""
    page = RENDERER.render("\n".join([*table_head(("h",), left=1), row_line([text])]))
    cells = re.findall(r"<td>(.*?)</td>", page, re.DOTALL)
    assert len(cells) == 1, page
    shown = cells[0].replace("<!-- -->", "")
    assert "<" not in shown, page
    return html.unescape(shown)
