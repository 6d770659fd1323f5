"""The axes that metrics have points on, and how a point is told: a new axis is one row here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pytest_distbench.records.metric import Scalar, metric_key
from pytest_distbench.units import format_bytes

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
