"""Inputs: what every rank sends in the exact check of an operation."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pytest_distbench.workloads.collectives.pattern import Pattern
from pytest_distbench.workloads.collectives.reductions import BETWEEN_RANKS, Reduction, reduction
from pytest_distbench.workloads.dtypes import DTYPES

_BETWEEN_PARTS = 3


class Inputs:
    """Element i of rank r is number i + 7 r of a row of few that repeats, so chosen that every result is exact.

    Args:
        count: elements every rank sends.
        rank: this rank in its group.
        world_size: ranks of the group.
        device: where they are made.
        dtype: torch's name of the element type.
        redop: name of the reduce operation.
        root: of the call, in the group.
        part: of a message in several tensors each has numbers of its own.
    """

    def __init__(
        self,
        count: int,
        *,
        rank: int,
        world_size: int,
        device: torch.device,
        dtype: str = "float32",
        redop: str = "sum",
        root: int = 0,
        part: int = 0,
    ) -> None:
        self.count = count
        self.rank = rank
        self.world_size = world_size
        self.root = root
        self._part = part
        self._reduction: Reduction = reduction(redop)
        numbers = self._reduction.numbers(world_size, DTYPES[dtype].largest)
        self._numbers = torch.tensor(numbers, device=device)

    @property
    def ulps(self) -> int:
        """Units in the last place by which a floating result may be off."""
        return self._reduction.ulps

    def of(self, rank: int) -> Pattern:
        """What ``rank`` sends, ``count`` numbers."""
        return Pattern.repeat(self._tile(rank), self.count)

    def of_all(self) -> Pattern:
        """What all ranks send, one after another, ``world_size * count`` numbers."""
        return Pattern.join(self.of(rank) for rank in range(self.world_size))

    def reduced(self) -> Pattern:
        """What the call's reduce operation makes of all ranks' inputs, ``count`` numbers."""
        return self.combine(self._reduction.combine)

    def combine(self, rule: Callable[[torch.Tensor], torch.Tensor]) -> Pattern:
        """What an element-wise rule makes of all ranks' inputs, ``count`` numbers.

        Args:
            rule: (world size, m) numbers -> (m,), for example ``lambda rows: rows.sum(0)``.
        """
        return Pattern.repeat(rule(torch.stack([self._tile(r) for r in range(self.world_size)])), self.count)

    def _tile(self, rank: int) -> torch.Tensor:
        return self._numbers.roll(-(BETWEEN_RANKS * rank + _BETWEEN_PARTS * self._part))
