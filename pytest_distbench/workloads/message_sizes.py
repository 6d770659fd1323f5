"""Message sizes of a sweep, in bytes: the presets."""

from __future__ import annotations


def power_of_two_sizes(first: int, last: int) -> list[int]:
    """Message sizes from ``first`` to ``last`` bytes, doubling, both ends included."""
    sizes = []
    size = first
    while size <= last:
        sizes.append(size)
        size *= 2
    return sizes


def mlbench_sizes(item_size: int) -> list[int]:
    """Message sizes in bytes of MLBench task 0a: ``numpy.logspace(0, 8, num=80)`` elements, as integers.

    The small counts repeat (1, 1, 1, 2, ...); each is listed once. Source: MLBench benchmark-tasks.rst, 0.a.
    """
    counts = {int(10 ** (8 * i / 79)) for i in range(80)}
    return [count * item_size for count in sorted(counts)]
