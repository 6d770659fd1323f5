"""Markdown that GitHub renders: text in a table cannot leave its cell nor become markup."""

from __future__ import annotations

from collections.abc import Sequence


def escape_markdown(text: str) -> str:
    """Text that cannot leave its table cell nor become markup."""
    for character, replacement in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("`", "'")):
        text = text.replace(character, replacement)
    return "".join(c if c.isprintable() else " " for c in text)


def table_head(header: Sequence[str], *, left: int) -> list[str]:
    """The first two lines of a table: the first ``left`` columns to the left, the others to the right."""
    return [row_line(header), "|" + "|".join("---" if i < left else "---:" for i in range(len(header))) + "|"]


def row_line(texts: Sequence[str]) -> str:
    """One row."""
    return "| " + " | ".join(escape_markdown(text) for text in texts) + " |"
