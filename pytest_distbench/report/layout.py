"""Lines for a terminal, and tables of texts, aligned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pytest_distbench.records.kinds import Severity
from pytest_distbench.report.escape import escape


class Line(NamedTuple):
    """One line, and what it says: a colour may show that, and no text depends on the colour."""

    text: str
    severity: Severity = "plain"


def layout(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """Align columns: the first ``left`` to the left, the others to the right. No trailing blanks."""
    safe = [[escape(text) for text in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in safe) for i in range(len(header))]
    lines = []
    for row in safe:
        texts = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(texts).rstrip())
    return lines
