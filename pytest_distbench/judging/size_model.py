"""How a collective's time depends on the message size: which sizes moved, and which of its two terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_distbench.units import format_bytes

FEWEST_SIZES = 4
"""Fewer points do not tell the two terms apart."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The model ``t = latency_s + message_bytes / bandwidth`` (Hockney, Parallel Computing 20, 1994).

    Attributes:
        latency_s: of a call that sends nothing.
        s_per_byte: inverse of the bandwidth in bytes per second.
    """

    latency_s: float
    s_per_byte: float


def fit(times: Mapping[int, float]) -> Terms:
    """Least squares on relative errors, so that small messages count as much as large ones; no term is negative.

    Args:
        times: message size in bytes -> seconds, at least two sizes.
    """
    weights = {size: 1 / t**2 for size, t in times.items()}
    w, wx, wy = (sum(weights[s] * v for s, v in column) for column in _columns(times))
    wxx = sum(weights[s] * s * s for s in times)
    wxy = sum(weights[s] * s * t for s, t in times.items())
    determinant = w * wxx - wx * wx
    latency, rate = (wy * wxx - wx * wxy) / determinant, (w * wxy - wx * wy) / determinant
    if rate < 0:
        return Terms(wy / w, 0.0)
    if latency < 0:
        return Terms(0.0, wxy / wxx)
    return Terms(latency, rate)


def which(hit: Sequence[int], sizes: Sequence[int]) -> str:
    """Message sizes that are hit, in words: ``from 64 KiB up``, ``at 3 of 25 sizes, first at 4 KiB``.

    Args:
        hit: at least one of ``sizes``.
        sizes: all that were measured.
    """
    inside = sorted(sizes)
    first, last = inside.index(min(hit)), inside.index(max(hit))
    if len(hit) == len(inside):
        return f"at all {len(inside)} sizes"
    if len(hit) == 1:
        return f"at {format_bytes(hit[0])} only"
    if last - first + 1 > len(hit):
        return f"at {len(hit)} of {len(inside)} sizes, first at {format_bytes(inside[first])}"
    if last == len(inside) - 1:
        return f"from {format_bytes(inside[first])} up"
    if first == 0:
        return f"up to {format_bytes(inside[last])}"
    return f"from {format_bytes(inside[first])} to {format_bytes(inside[last])}"


def _columns(times: Mapping[int, float]) -> tuple[list[tuple[int, float]], ...]:
    return [(s, 1.0) for s in times], [(s, float(s)) for s in times], list(times.items())
