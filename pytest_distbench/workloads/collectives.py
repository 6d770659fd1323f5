"""The collectives: message size and bus-bandwidth factor of each.

Definitions as in nccl-tests (``doc/PERFORMANCE.md`` and ``src/*.cu``): ``S`` is the larger of the bytes one
rank sends and receives, ``algbw = S / t``, ``busbw = algbw * factor``, 1 GB = 1e9 bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pytest_distbench.errors import ConfigurationError

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8, "int32": 4, "int64": 8, "uint8": 1}
"""Bytes of one element of every dtype a sweep accepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective operation.

    Attributes:
        name: its torch name.
        busbw_factor: world size -> busbw / algbw. 0 at world size 1, where nothing travels.
        source: where the factor comes from.
    """

    name: str
    busbw_factor: Callable[[int], float]
    source: str


COLLECTIVES = {
    "all_reduce": Collective(
        name="all_reduce", busbw_factor=lambda n: 2 * (n - 1) / n, source="nccl-tests src/all_reduce.cu"
    ),
}
"""The collectives a sweep can measure, by torch name."""


def collective(name: str) -> Collective:
    """Look a collective up by its torch name.

    Raises:
        ConfigurationError: no such collective; the message lists those there are.
    """
    if name not in COLLECTIVES:
        raise ConfigurationError(f"unknown collective {name!r}: known are {', '.join(sorted(COLLECTIVES))}")
    return COLLECTIVES[name]


def item_bytes(dtype: str) -> int:
    """Bytes of one element of ``dtype``.

    Raises:
        ConfigurationError: unknown dtype; the message lists those there are.
    """
    if dtype not in ITEM_BYTES:
        raise ConfigurationError(f"unknown dtype {dtype!r}: known are {', '.join(sorted(ITEM_BYTES))}")
    return ITEM_BYTES[dtype]


def algbw(message_bytes: float, seconds: float) -> float:
    """Algorithm bandwidth in bytes per second."""
    return message_bytes / seconds


def busbw(name: str, *, message_bytes: float, seconds: float, world_size: int) -> float:
    """Bus bandwidth in bytes per second: algbw times the collective's factor."""
    return algbw(message_bytes, seconds) * collective(name).busbw_factor(world_size)


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
