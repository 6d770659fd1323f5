"""Text from tests, ranks and files, made safe to print."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_distbench.report.texts.escape import escape, escape_cell, escape_lines


@given(st.text())
def test_printable_text_has_no_control_characters(text: str) -> None:
    shown = escape(text)

    assert all(c == "\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in shown)
    assert escape(shown) == shown


def test_what_moves_the_cursor_or_reorders_text_is_spelled_out() -> None:
    assert escape("a\x1b[2Jb\u202ec\n\td") == "a\\x1b[2Jb\\u202ec\\n\td"


@pytest.mark.parametrize("command", ["::error file=a::PWNED", "  ::set-output name=a::b", "##[error]PWNED"])
def test_no_line_begins_with_a_command_to_the_ci(command: str) -> None:
    for shown in (escape(command), escape(f"x\n{command}"), *escape_lines(f"Traceback\n{command}").split("\n")):
        assert not shown.lstrip().startswith(("::", "##["))
        assert "\n" not in shown


def test_a_text_of_several_lines_keeps_them() -> None:
    assert escape_lines("a\n  b\x1b") == "a\n  b\\x1b"


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


def test_a_cell_is_safe_where_a_terminal_or_a_ci_system_reads_it() -> None:
    assert escape_cell("x\n::error::a\r\x9b2J") == "x\\n::error::a\\r\\x9b2J"
    assert escape_cell("::error::a") == "\\::error::a"
