"""What people read of a run; in this module, lines for a terminal and tables of texts.

Text from tests, ranks and files must not move the cursor, recolour or reorder anything, nor begin a line that a CI
system takes for a command.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pytest_distbench.records.reasons import Severity
from pytest_distbench.records.run import Finding

_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Control characters, invisible format characters (bidirectional overrides), surrogates, foreign line ends."""

_COMMAND = re.compile(r"^\s*(?=::)|(?<=#)(?=#(?:vso|teamcity)?\[)")
"""What CI systems interpret: ``::error::`` at the beginning of a line, ``##[error]`` anywhere."""


def escape(text: str) -> str:
    r"""The text on one line, with every control character spelled out: ESC becomes ``\x1b``. Tabs stay."""
    line = text
    if not (text.isascii() and text.isprintable()):
        line = "".join(
            c
            if c == "\t" or unicodedata.category(c) not in _UNSAFE
            else c.encode("unicode_escape", errors="backslashreplace").decode("ascii")
            for c in text
        )
    return _COMMAND.sub(r"\g<0>\\", line)


_FORMULA = re.compile(r"[=+\-@\t＝＋－＠]")  # noqa: RUF001 spreadsheets take the wide ones for the others


def escape_cell(text: str) -> str:
    """:func:`escape` for a CSV file, where a spreadsheet takes ``=1`` for a formula, and ``'=1`` for a text."""
    line = escape(text)
    if _FORMULA.match(line):
        try:
            float(line)
        except ValueError:
            return f"'{line}"
    return line


def escape_lines(text: str) -> str:
    """:func:`escape` for a text with line breaks on purpose, such as a traceback: each line is escaped by itself."""
    return "\n".join(map(escape, text.split("\n")))


class Line(NamedTuple):
    """One line of text and its severity, which may colour it; no text depends on the colour."""

    text: str
    severity: Severity = "plain"


def lines_of(findings: Iterable[Finding]) -> list[Line]:
    """One line per finding, with its mark."""
    return [Line(f"{found.row.mark} {found.reason}".lstrip(), found.severity) for found in findings]


def layout(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """Align columns: the first ``left`` to the left, the others to the right. No trailing blanks."""
    safe = [[escape(text) for text in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in safe) for i in range(len(header))]
    lines = []
    for row in safe:
        texts = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(texts).rstrip())
    return lines


_NAMED = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}

_MARKUP = re.compile(
    r"[&<>|\\`*~$]"
    r"|\](?=\()"  # the text of a link or an image
    r"|(?<![^\W_])_|_(?![^\W_])"  # emphasis; not within words
    r"|^#|[@#](?=\w)|:(?=//)|www(?=\.)",  # headings, mentions, issues, bare addresses
    re.IGNORECASE,
)


def escape_markdown(text: str) -> str:
    """Escape text so that it stays in its line or table cell, is no markup, and reads the same once rendered."""
    return _MARKUP.sub(_disarm, "".join(c if c.isprintable() else " " for c in text))


def _disarm(found: re.Match[str]) -> str:
    """Replace a sign by an entity, which is no markup, or put an empty comment after a sign that would begin a link."""
    sign = found[0]
    if sign[0] in "@#:wW":
        return f"{sign}<!-- -->"
    return _NAMED.get(sign, f"&#{ord(sign)};")


def table_head(header: Sequence[str], *, left: int) -> list[str]:
    """The first two lines of a Markdown table: the first ``left`` columns to the left, the others to the right."""
    return [row_line(header), "|" + "|".join("---" if i < left else "---:" for i in range(len(header))) + "|"]


def row_line(texts: Sequence[str]) -> str:
    return "| " + " | ".join(escape_markdown(text) for text in texts) + " |"
