"""Text from tests, ranks and files, made safe to print."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from pytest_distbench.report.escape import escape


@given(st.text())
def test_printable_text_has_no_control_characters(text: str) -> None:
    shown = escape(text)

    assert all(c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in shown)
    assert escape(shown) == shown


def test_what_moves_the_cursor_or_reorders_text_is_spelled_out() -> None:
    assert escape("a\x1b[2Jb\u202ec\n\td") == "a\\x1b[2Jb\\u202ec\n\td"
