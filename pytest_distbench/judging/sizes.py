"""Which message sizes of a sweep moved, in words."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_distbench.units import format_bytes


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
