"""A verdict in words: its metric, values, change and limit, and the columns that show it beside each kind of reference.

The words for a point of a metric are a table: a new axis is one row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pytest_distbench.records.bound import Side, tightest
from pytest_distbench.records.kinds import METRIC_KINDS, VERDICT_KINDS
from pytest_distbench.records.metric import Scalar, metric_key
from pytest_distbench.records.run import CaseResult, Verdict
from pytest_distbench.units import format_bytes, format_change, format_quantity

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


def metric_text(verdict: Verdict) -> str:
    """The metric at its point: ``latency at 4 KiB``."""
    return point_text(verdict.name, verdict.at) if verdict.at else verdict.metric


def name_in_file(nodeid: str) -> str:
    """A test without its file: ``TestA::test_b[ws2]``. Ids may hold what separates the parts of the name."""
    return nodeid.partition("::")[2] or nodeid


def test_name(result: CaseResult) -> str:
    return f"{result.case.place and f'{result.case.place}::'}{name_in_file(result.nodeid)}"


def quantity(value: float | None, unit: str) -> str:
    """A value with its unit, ``-`` where there is none."""
    return "-" if value is None else format_quantity(value, unit)


def current(verdict: Verdict) -> str:
    return quantity(verdict.current, verdict.unit)


def reference(verdict: Verdict) -> str:
    return quantity(verdict.baseline, verdict.unit) if verdict.is_judged else ""


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


def _finds(verdict: Verdict) -> str:
    """The smallest slowdown that would be called regressed in nine of ten runs."""
    seen = verdict.detectable
    return "" if seen is None else f"+{seen:.1%}" if seen <= 1 else "> +100%"


def _launches(verdict: Verdict) -> str:
    """How many there are, or pairs of them."""
    return str(verdict.launches) if verdict.launches else ""


Columns = Mapping[str, Callable[[Verdict], str]]
"""Heading -> the text below it."""

_MEASURED: Columns = {"": lambda verdict: VERDICT_KINDS[verdict.kind].mark, "metric": metric_text}
_ALLOWED: Columns = {"change": change, "limit": limit}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceWords:
    """How a comparison is told, by what the reference is.

    The name is that of the other side, ``baseline``; ``unchanged`` is said of rows that are not shown, and ``drift``
    before the software that differs.
    """

    columns: Columns
    name: str
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
    name="baseline",
    unchanged="within their limits",
    drift="software differs from the baselines'",
)
REFERENCE_WORDS: dict[str, ReferenceWords] = {
    "stored": _STORED,
    "paired": ReferenceWords(
        columns={
            **_MEASURED,
            "this tree": current,
            "reference": reference,
            **_ALLOWED,
            "finds": _finds,
            "pairs": _launches,
        },
        name="reference",
        unchanged="unchanged",
        drift="software differs from the reference's",
    ),
    "nothing": _STORED,
}
"""By the kind of the reference of a case."""


def words_for(result: CaseResult) -> ReferenceWords:
    return REFERENCE_WORDS[result.reference.kind]


def cells(verdict: Verdict, columns: Columns) -> tuple[str, ...]:
    return tuple(text(verdict) for text in columns.values())
