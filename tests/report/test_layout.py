"""Tables of texts are aligned, and end without blanks."""

from __future__ import annotations

from pytest_distbench.report.layout import layout


def test_the_first_columns_stand_left_and_the_others_right() -> None:
    assert layout(("name", "unit", "n"), [("a", "s", "12")], left=2) == ["name  unit   n", "a     s     12"]


def test_no_line_ends_in_blanks() -> None:
    assert layout(("a", ""), [("b", "")]) == ["a", "b"]


def test_a_text_can_neither_leave_its_line_nor_begin_a_command() -> None:
    lines = layout(("a",), [("x\n::error file=a::PWNED",), ("::error::x",)])

    assert lines == ["a", "x\\n::error file=a::PWNED", "\\::error::x"]
