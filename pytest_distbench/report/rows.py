"""One verdict as a row of texts, and the columns that show it beside each kind of reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pytest_distbench.records.bound import tightest
from pytest_distbench.records.bound_text import Side
from pytest_distbench.records.kinds import METRIC_KINDS, VERDICT_KINDS
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.report.axes import point_text
from pytest_distbench.units import format_change, format_quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One verdict, every cell a text; empty where there is nothing to say.

    Attributes:
        mark: one character: failed, open, ...
        verdict: its kind.
        metric: name and point.
        current: of this run, with unit.
        reference: of what it was compared with.
        change: against that, as the metric itself moves.
        limit: the largest accepted change towards worse, and the bounds.
        finds: the smallest slowdown that would be called regressed in nine of ten runs.
        launches: how many there are, or pairs of them.
    """

    mark: str
    verdict: str
    metric: str
    current: str
    reference: str
    change: str
    limit: str
    finds: str
    launches: str


def make_row(verdict: Verdict) -> Row:
    """The texts for one verdict."""
    seen = verdict.detectable
    return Row(
        mark=VERDICT_KINDS[verdict.kind].mark,
        verdict=verdict.kind,
        metric=metric_text(verdict),
        current=quantity(verdict.current, verdict.unit),
        reference=quantity(verdict.baseline, verdict.unit) if verdict.is_judged else "",
        change=change(verdict),
        limit=limit(verdict),
        finds="" if seen is None else f"+{seen:.1%}" if seen <= 1 else "> +100%",
        launches=str(verdict.launches) if verdict.launches else "",
    )


def metric_text(verdict: Verdict) -> str:
    """The metric at its point: ``latency at 4 KiB``."""
    return point_text(verdict.name, verdict.at) if verdict.at else verdict.metric


def name_in_file(nodeid: str) -> str:
    """A test without its file: ``TestA::test_b[ws2]``. Ids may hold what separates the parts of the name."""
    return nodeid.partition("::")[2] or nodeid


def quantity(value: float | None, unit: str) -> str:
    """A value with its unit, ``-`` where there is none."""
    return "-" if value is None else format_quantity(value, unit)


def change(verdict: Verdict) -> str:
    """The change against the reference, signed, as the metric itself moves."""
    if verdict.kind == "changed":
        return "changed"
    return "" if verdict.ratio is None or not verdict.is_judged else format_change(verdict.ratio)


def limit(verdict: Verdict) -> str:
    """The largest accepted change towards worse, and the bounds: ``+10%, <= 200 us``."""
    sides: tuple[tuple[str, Side], ...] = ((">=", "least"), ("<=", "most"))
    found = [(sign, tightest(verdict.bounds, side)) for sign, side in sides]
    bounds = [f"{sign} {quantity(value, verdict.unit)}" for sign, value in found if value is not None]
    return ", ".join(filter(None, [_largest_change(verdict), *bounds]))


_LARGEST_SHARE = 2.0
"""Of little memory a larger one is accepted, since some mebibytes always are: then their number says more."""


def _largest_change(verdict: Verdict) -> str:
    if verdict.limit is None or not METRIC_KINDS[verdict.better].is_judged:
        return ""
    kind = METRIC_KINDS[verdict.better]
    if kind.rule == "memory" and verdict.limit > _LARGEST_SHARE and verdict.baseline is not None:
        return f"+{quantity(verdict.limit * verdict.baseline, verdict.unit)}"
    return "exact" if kind.repeats_exactly and verdict.limit == 0.0 else kind.limit_text(verdict.limit)


Columns = Mapping[str, Callable[[Row], str]]
"""Heading -> the cell below it."""

_MEASURED: Columns = {"": lambda row: row.mark, "metric": lambda row: row.metric}
_ALLOWED: Columns = {"change": lambda row: row.change, "limit": lambda row: row.limit}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceWords:
    """How a comparison is told, by what the reference is.

    Attributes:
        columns: of a table of verdicts.
        name: of the other side: ``baseline``.
        unchanged: what is said of rows that are not shown.
        drift: before the software that differs.
    """

    columns: Columns
    name: str
    unchanged: str
    drift: str


_STORED = ReferenceWords(
    columns={
        **_MEASURED,
        "this run": lambda row: row.current,
        "baseline": lambda row: row.reference,
        **_ALLOWED,
        "n": lambda row: row.launches,
    },
    name="baseline",
    unchanged="within their limits",
    drift="software differs from the baselines'",
)
REFERENCE_WORDS: dict[str, ReferenceWords] = {
    "stored": _STORED,
    "paired": ReferenceWords(
        columns={
            **_MEASURED,
            "this tree": lambda row: row.current,
            "reference": lambda row: row.reference,
            **_ALLOWED,
            "finds": lambda row: row.finds,
            "pairs": lambda row: row.launches,
        },
        name="reference",
        unchanged="unchanged",
        drift="software differs from the reference's",
    ),
    "nothing": _STORED,
}
"""By the kind of the reference of a case."""


def words_for(result: CaseResult) -> ReferenceWords:
    """How the comparison of this case is told."""
    return REFERENCE_WORDS[result.reference.kind]


def cells(row: Row, columns: Columns) -> tuple[str, ...]:
    """A row under these columns."""
    return tuple(cell(row) for cell in columns.values())
