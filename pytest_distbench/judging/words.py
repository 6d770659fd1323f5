"""A finding in words: its metric at its point, both sides, the change and the threshold.

The words for a point of a metric are a table: a new axis is one row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.metric import FINGERPRINT, Scalar, Side, metric_key, tightest
from pytest_distbench.records.run import STATISTICS, Finding
from pytest_distbench.units import format_bytes, format_change, format_share, quantity

AXES: dict[str, Callable[[Scalar], str]] = {
    "message_bytes": lambda size: f"at {format_bytes(float(size))}",
    "world_size": lambda ranks: f"at {ranks} ranks",
    "from": lambda rank: f"from rank {rank}",
    "to": lambda rank: f"to rank {rank}",
    "calls": lambda calls: "with one call each" if calls == "each" else str(calls),
    "tensors": lambda count: f"in {count} tensor{'s' * (count != 1)}",
    "hook": lambda hook: f"with the hook {hook}",
    "from_update": lambda update: f"from update {update} on",
    "of": lambda what: f"of {what}",
    "seed": lambda seed: f"of seed {seed}",
}
"""Axis -> the words for a point on it, as they follow the name of the metric."""


def point_text(name: str, at: Mapping[str, Scalar]) -> str:
    """A metric at its point: ``latency at 4 KiB``; axes without words as in files: ``loss[level=2]``."""
    known = [AXES[axis](point) for axis, point in sorted(at.items()) if axis in AXES]
    rest = {axis: point for axis, point in at.items() if axis not in AXES}
    return " ".join([metric_key(name, rest), *known])


def metric_text(verdict: Finding) -> str:
    """A metric at its point, by its name for people."""
    if verdict.metric == FINGERPRINT:
        return "communication"
    return point_text(verdict.name, verdict.at) if verdict.at else verdict.metric


def current(verdict: Finding) -> str:
    return quantity(verdict.current, verdict.unit)


def baseline(verdict: Finding) -> str:
    return quantity(verdict.baseline, verdict.unit) if verdict.is_judged else ""


def statistic_text(verdict: Finding) -> str:
    """Statistic by which this run and the baseline are compared, or "" if all their launches must be equal."""
    is_one = verdict.current is None or METRIC_KINDS[verdict.better].is_exact or not verdict.is_judged
    return "" if is_one else STATISTICS[verdict.statistic].shown


_AT = ("differs_most_at_step", "differs_most_at_value")


def change(verdict: Finding) -> str:
    """The relative change for people, ``+12%``, or ``differs by 3%`` for losses, which have no better direction."""
    if verdict.code == "communication":
        return "changed"
    if verdict.ratio is None or not verdict.is_judged:
        return ""
    step = next((f" at {name.rpartition('_')[2]} {at}" for name, at in verdict.facts.items() if name in _AT), "")
    if step and verdict.facts["deviation"]:
        return f"differs by up to {format_share(float(verdict.facts['deviation']))}{step}"
    if METRIC_KINDS[verdict.better].is_two_sided and verdict.ratio != 1:
        return f"differs by {format_share(abs(verdict.ratio - 1))}"
    return format_change(verdict.ratio)


_LARGEST_SHARE = 2.0
"""Change of memory above which the threshold is printed in bytes: of little memory a few MiB are a large share."""


def threshold(verdict: Finding) -> str:
    """The largest accepted change towards worse, and the bounds: ``+10%, <= 200 us``."""
    kind, share, then = METRIC_KINDS[verdict.better], verdict.threshold, verdict.baseline
    largest = ""
    if share is not None and kind.is_judged:
        largest = "exact" if kind.repeats_exactly and share == 0.0 else kind.limit_text(share)
        if kind.is_memory and share > _LARGEST_SHARE and then is not None:
            largest = f"+{quantity(share * then, verdict.unit)}"
    sides: tuple[tuple[str, Side], ...] = ((">=", "least"), ("<=", "most"))
    found = [(sign, tightest(verdict.bounds, side)) for sign, side in sides]
    bounds = [f"{sign} {quantity(value, verdict.unit)}" for sign, value in found if value is not None]
    return ", ".join(filter(None, [largest, *bounds]))


def mde(verdict: Finding) -> str:
    found = verdict.mde
    return "" if found is None else f"+{found:.1%}" if found <= 1 else "> +100%"
