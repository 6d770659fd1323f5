"""Text from tests, ranks and files, made safe to print.

It must not move the cursor, recolour or reorder anything, nor begin a line that a CI system takes for a command.
"""

from __future__ import annotations

import re
import unicodedata

_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Control characters, invisible format characters (bidirectional overrides), surrogates, foreign line ends."""

_COMMAND = re.compile(r"^\s*(?=::)|(?<=#)(?=#(?:vso|teamcity)?\[)")
"""What CI systems act on: ``::error::`` where a line begins, ``##[error]`` wherever it stands."""


def escape(text: str) -> str:
    r"""The text on one line, with every control character spelled out: ESC becomes ``\x1b``. Tabs stay."""
    line = text
    if not (text.isascii() and text.isprintable()):
        line = "".join(c if c == "\t" or unicodedata.category(c) not in _UNSAFE else _spell_out(c) for c in text)
    return _COMMAND.sub(r"\g<0>\\", line)


_FORMULA = re.compile(r"[=+\-@\t＝＋－＠]")  # noqa: RUF001 spreadsheets take the wide ones for the others


def escape_cell(text: str) -> str:
    """As :func:`escape`, of a text in a CSV file: a spreadsheet takes ``'=1`` for a text, and ``=1`` for a formula."""
    line = escape(text)
    return f"'{line}" if _FORMULA.match(line) and not _is_number(line) else line


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def escape_lines(text: str) -> str:
    """As :func:`escape`, of a text that has lines on purpose, such as a traceback: each is made safe by itself."""
    return "\n".join(map(escape, text.split("\n")))


def _spell_out(character: str) -> str:
    return character.encode("unicode_escape", errors="backslashreplace").decode("ascii")
