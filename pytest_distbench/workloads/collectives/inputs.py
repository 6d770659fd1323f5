"""Inputs: what every rank sends in the exact check of an operation."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pytest_distbench.workloads.collectives.pattern import Pattern

LARGEST_EXACT = 256
"""bfloat16 has 8 significant bits: integers up to 256 are exact in every dtype of a sweep."""


class Inputs:
    """Element i of rank r is (i + 7 r) mod m, m small enough that every sum is an integer all dtypes hold exactly.

    Args:
        count: elements every rank sends.
        rank: this rank.
        world_size: ranks.
        device: where they are made.
    """

    def __init__(self, count: int, *, rank: int, world_size: int, device: torch.device) -> None:
        self.count = count
        self.rank = rank
        self.world_size = world_size
        self._period = torch.arange(max(1, LARGEST_EXACT // world_size), device=device)

    def of(self, rank: int) -> Pattern:
        """What ``rank`` sends, ``count`` numbers."""
        return Pattern.repeat(self._tile(rank), self.count)

    def of_all(self) -> Pattern:
        """What all ranks send, one after another, ``world_size * count`` numbers."""
        return Pattern.join(self.of(rank) for rank in range(self.world_size))

    def combine(self, rule: Callable[[torch.Tensor], torch.Tensor]) -> Pattern:
        """What an element-wise rule makes of all ranks' inputs, ``count`` numbers.

        Args:
            rule: (world size, m) integers -> (m,), for example ``lambda rows: rows.sum(0)``.
        """
        return Pattern.repeat(rule(torch.stack([self._tile(r) for r in range(self.world_size)])), self.count)

    def _tile(self, rank: int) -> torch.Tensor:
        return (self._period + 7 * rank) % len(self._period)
