"""How a sweep measures: its choices and numbers, which pytest's process reads without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.records.choices import Mode, OverRanks
from pytest_distbench.workloads.message_sizes import mlbench_sizes, power_of_two_sizes

Cache = Literal["rotate", "hot"]
"""Whether buffers move through a memory larger than the caches, or stay."""

MemoryKind = Literal["plain", "registered"]
Together = Literal["turns", "coalesced", "async"]
"""How the tensors of one message are sent: one after the other, as one call of torch's, or several at once."""

CACHES: tuple[Cache, ...] = get_args(Cache)
MEMORY_KINDS: tuple[MemoryKind, ...] = get_args(MemoryKind)
TOGETHER: tuple[Together, ...] = get_args(Together)

SHIFT = "shift"
"""As root: each iteration has the next rank as its root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Message sizes that have a name, and how they are measured where the call says nothing else.

    Attributes:
        summary: for people.
        sizes: bytes, from the bytes of an element.
        iterations: timed per size; None: as many as fit a time budget.
        warmup: untimed iterations per size.
        mode: of the clock.
        over_ranks: what an iteration's time is made of the ranks' times.
        as_memory_allows: the largest sizes are left out where a rank has no memory for them.
    """

    summary: str
    sizes: Callable[[int], list[int]]
    iterations: int | None = None
    warmup: int = 5
    mode: Mode = "per-iteration"
    over_ranks: OverRanks = "max"
    as_memory_allows: bool = False


PRESETS: dict[str, Preset] = {
    "powers": Preset(summary="4 B to 64 MiB, doubling", sizes=lambda item: power_of_two_sizes(4, 64 * 2**20)),
    "small": Preset(summary="256 B, 4 KiB, 64 KiB, 1 MiB", sizes=lambda item: [2**8, 2**12, 2**16, 2**20]),
    "gpu": Preset(
        summary="1 KiB to 8 GiB, doubling, as memory allows",
        sizes=lambda item: power_of_two_sizes(2**10, 2**33),
        as_memory_allows=True,
    ),
    "mlbench": Preset(
        summary="MLBench task 0a: 80 steps from 1 to 10^8 elements, 100 times each", sizes=mlbench_sizes, iterations=100
    ),
    "nccl-tests": Preset(
        summary="nccl-tests without options: 32 MiB, 20 calls in one breath after one, the mean over ranks",
        sizes=lambda item: [32 * 2**20],
        iterations=20,
        warmup=1,
        mode="batch",
        over_ranks="mean",
    ),
}
"""By the name that ``sizes=`` takes."""


def preset(name: str) -> Preset:
    """Look a preset up.

    Raises:
        ConfigurationError: unknown; the message lists those there are.
    """
    if name not in PRESETS:
        raise ConfigurationError(
            f"unknown preset of sizes {name!r}: known are {', '.join(PRESETS)}, or give a list of bytes"
        )
    return PRESETS[name]
