"""Markdown that GitHub renders: text in a table cannot leave its cell nor become markup."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NAMED = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}

_MARKUP = re.compile(
    r"[&<>|\\`*~$]"
    r"|\](?=\()"  # the text of a link or an image
    r"|(?<![^\W_])_|_(?![^\W_])"  # emphasis; not within words
    r"|^#|[@#](?=\w)|:(?=//)|www(?=\.)",  # headings, mentions, issues, bare addresses
    re.IGNORECASE,
)


def escape_markdown(text: str) -> str:
    """Text that cannot leave its line or table cell nor become markup, and reads as it is once rendered."""
    return _MARKUP.sub(_disarm, "".join(c if c.isprintable() else " " for c in text))


def _disarm(found: re.Match[str]) -> str:
    """An entity is never taken for the sign it stands for; an empty comment keeps apart what would become a link."""
    sign = found[0]
    if sign[0] in "@#:wW":
        return f"{sign}<!-- -->"
    return _NAMED.get(sign, f"&#{ord(sign)};")


def table_head(header: Sequence[str], *, left: int) -> list[str]:
    """The first two lines of a table: the first ``left`` columns to the left, the others to the right."""
    return [row_line(header), "|" + "|".join("---" if i < left else "---:" for i in range(len(header))) + "|"]


def row_line(texts: Sequence[str]) -> str:
    """One row."""
    return "| " + " | ".join(escape_markdown(text) for text in texts) + " |"
