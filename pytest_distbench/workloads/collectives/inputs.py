"""Inputs: what every rank sends in the exact check of an operation."""

from __future__ import annotations

from collections.abc import Callable

import torch

LARGEST_EXACT = 256
"""bfloat16 has 8 significant bits: integers up to 256 are exact in every dtype of a sweep."""


class Inputs:
    """Element i of rank r is (i + 7 r) mod m, m small enough that every sum is an integer the dtype holds exactly.

    Args:
        count: elements every rank sends.
        rank: this rank.
        world_size: ranks.
        dtype: of the elements.
        device: where they are.
    """

    def __init__(self, count: int, *, rank: int, world_size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.count = count
        self.rank = rank
        self.world_size = world_size
        self._dtype = dtype
        self._period = torch.arange(max(1, LARGEST_EXACT // world_size), device=device)

    def of(self, rank: int) -> torch.Tensor:
        """What ``rank`` sends, (count,)."""
        return self._repeat(self._tile(rank))

    def combine(self, rule: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """What an element-wise rule makes of all ranks' inputs, (count,).

        Args:
            rule: (world size, m) integers -> (m,), for example ``lambda rows: rows.sum(0)``.
        """
        return self._repeat(rule(torch.stack([self._tile(r) for r in range(self.world_size)])))

    def _tile(self, rank: int) -> torch.Tensor:
        return (self._period + 7 * rank) % len(self._period)

    def _repeat(self, tile: torch.Tensor) -> torch.Tensor:
        return tile.to(self._dtype).repeat(-(-self.count // len(tile)))[: self.count].clone()
