"""What people read of a run; here lines for a terminal, tables of texts, and a verdict in words.

Text from tests, ranks and files must not move the cursor, recolour or reorder anything, nor begin a line that a CI
system takes for a command. The words for a point of a metric are a table: a new axis is one row.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.metric import Scalar, Side, metric_key, tightest
from pytest_distbench.records.reasons import Severity
from pytest_distbench.records.run import CaseResult, Finding
from pytest_distbench.units import format_bytes, format_change, format_quantity, format_share

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
    return "| " + " | ".join(escape_markdown(text) for text in texts) + " |"


AXES: dict[str, Callable[[Scalar], str]] = {
    "message_bytes": lambda size: f"at {format_bytes(float(size))}",
    "world_size": lambda ranks: f"at {ranks} ranks",
    "from": lambda rank: f"from rank {rank}",
    "to": lambda rank: f"to rank {rank}",
    "calls": lambda calls: "with one call each" if calls == "each" else str(calls),
    "tensors": lambda count: f"in {count} tensor{'s' * (count != 1)}",
    "hook": lambda hook: f"with the hook {hook}",
    "seed": lambda seed: f"of seed {seed}",
}
"""Axis -> the words for a point on it, as they follow the name of the metric."""


def point_text(name: str, at: Mapping[str, Scalar]) -> str:
    """A metric at its point: ``latency at 4 KiB``; axes without words as in files: ``loss[level=2]``."""
    known = [AXES[axis](point) for axis, point in sorted(at.items()) if axis in AXES]
    rest = {axis: point for axis, point in at.items() if axis not in AXES}
    return " ".join([metric_key(name, rest), *known])


def metric_text(verdict: Finding) -> str:
    return point_text(verdict.name, verdict.at) if verdict.at else verdict.metric


def name_in_file(nodeid: str) -> str:
    """A test without its file: ``TestA::test_b[ws2]``. Ids may hold what separates the parts of the name."""
    return nodeid.partition("::")[2] or nodeid


def test_name(result: CaseResult) -> str:
    return f"{result.case.place and f'{result.case.place}::'}{name_in_file(result.nodeid)}"


def quantity(value: float | None, unit: str) -> str:
    """A value with its unit, ``-`` where there is none."""
    return "-" if value is None else format_quantity(value, unit)


def current(verdict: Finding) -> str:
    return quantity(verdict.current, verdict.unit)


def reference(verdict: Finding) -> str:
    return quantity(verdict.baseline, verdict.unit) if verdict.is_judged else ""


_AT = ("differs_most_at_step", "differs_most_at_value")


def change(verdict: Finding) -> str:
    """This run over the baseline, less 1. Losses have no better direction, so theirs has no sign."""
    if verdict.code == "communication":
        return "changed"
    if verdict.ratio is None or not verdict.is_judged:
        return ""
    step = next((f" at {name.rpartition('_')[2]} {at}" for name, at in verdict.facts.items() if name in _AT), "")
    if step and verdict.facts["deviation"]:
        return f"differs by up to {format_share(float(verdict.facts['deviation']))}{step}"
    if METRIC_KINDS[verdict.better].rule == "same" and verdict.ratio != 1:
        return f"differs by {format_share(abs(verdict.ratio - 1))}"
    return format_change(verdict.ratio)


def threshold(verdict: Finding) -> str:
    """The largest accepted change towards worse, and the bounds: ``+10%, <= 200 us``."""
    sides: tuple[tuple[str, Side], ...] = ((">=", "least"), ("<=", "most"))
    found = [(sign, tightest(verdict.bounds, side)) for sign, side in sides]
    bounds = [f"{sign} {quantity(value, verdict.unit)}" for sign, value in found if value is not None]
    return ", ".join(filter(None, [_largest_change(verdict), *bounds]))


_LARGEST_SHARE = 2.0
"""Of little memory a larger one is accepted, since some mebibytes always are: then their number says more."""


def _largest_change(verdict: Finding) -> str:
    if verdict.threshold is None or not METRIC_KINDS[verdict.better].is_judged:
        return ""
    kind = METRIC_KINDS[verdict.better]
    if kind.rule == "memory" and verdict.threshold > _LARGEST_SHARE and verdict.baseline is not None:
        return f"+{quantity(verdict.threshold * verdict.baseline, verdict.unit)}"
    return "exact" if kind.repeats_exactly and verdict.threshold == 0.0 else kind.limit_text(verdict.threshold)


def mde(verdict: Finding) -> str:
    found = verdict.mde
    return "" if found is None else f"+{found:.1%}" if found <= 1 else "> +100%"


def _launches(verdict: Finding) -> str:
    return str(verdict.launches) if verdict.launches else ""


Columns = Mapping[str, Callable[[Finding], str]]
"""Heading -> the text below it."""

_MEASURED: Columns = {"": lambda verdict: verdict.row.mark, "metric": metric_text}
_ALLOWED: Columns = {"change": change, "threshold": threshold}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceWords:
    """How a comparison is told, by what the reference is.

    ``unchanged`` is said of rows that are not shown, and ``drift`` before the software that differs.
    """

    columns: Columns
    unchanged: str
    drift: str


_STORED = ReferenceWords(
    columns={
        **_MEASURED,
        "this run": current,
        "baseline": reference,
        **_ALLOWED,
        "n": _launches,
    },
    unchanged="within their thresholds",
    drift="software differs from the baselines'",
)
REFERENCE_WORDS: dict[str, ReferenceWords] = {
    "stored": _STORED,
    "paired": ReferenceWords(
        columns={
            **_MEASURED,
            "candidate": current,
            "baseline": reference,
            **_ALLOWED,
            "MDE": mde,
            "pairs": _launches,
        },
        unchanged="unchanged",
        drift="software differs from the baseline's",
    ),
    "nothing": _STORED,
}
"""By the kind of the reference of a case."""


def words_for(result: CaseResult) -> ReferenceWords:
    return REFERENCE_WORDS[result.reference.kind]


def cells(verdict: Finding, columns: Columns) -> tuple[str, ...]:
    return tuple(text(verdict) for text in columns.values())
