"""Inputs: what every rank sends in the exact check of an operation; rows of numbers that take no memory until made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from pytest_distbench.workloads.protocol import BETWEEN_RANKS, DTYPES, Reduction, reduction

_Piece = tuple[torch.Tensor, int, int]
"""A tile that repeats, from which of its elements on, and how many numbers."""


class Pattern:
    """A row of numbers, made of pieces that repeat. It takes no memory: parts are made with :meth:`make`."""

    def __init__(self, pieces: Iterable[_Piece]) -> None:
        self._pieces = [piece for piece in pieces if piece[2]]

    @classmethod
    def repeat(cls, tile: torch.Tensor, count: int) -> Pattern:
        """The numbers of ``tile``, again and again, ``count`` in all."""
        return cls([(tile, 0, count)])

    @classmethod
    def join(cls, patterns: Iterable[Pattern]) -> Pattern:
        """One after another, as ``torch.cat`` does."""
        return cls(piece for pattern in patterns for piece in pattern._pieces)

    def __len__(self) -> int:
        return sum(count for _, _, count in self._pieces)

    def __getitem__(self, part: slice) -> Pattern:
        """A part, as of a tensor; without a step."""
        begin, end, _ = part.indices(len(self))
        return Pattern(self._cut(begin, end))

    def map(self, rule: Callable[[torch.Tensor], torch.Tensor]) -> Pattern:
        """The numbers that an element-wise rule makes of these."""
        return Pattern((rule(tile), start, count) for tile, start, count in self._pieces)

    def make(self, begin: int, end: int, dtype: torch.dtype) -> torch.Tensor:
        """The numbers from ``begin`` to ``end``, (end - begin,), on the device of the tiles."""
        made = [
            tile.roll(-(start % len(tile))).to(dtype).repeat(-(-count // len(tile)))[:count]
            for tile, start, count in self._cut(begin, end)
        ]
        return torch.cat(made) if made else torch.empty(0, dtype=dtype)

    def _cut(self, begin: int, end: int) -> Iterator[_Piece]:
        at = 0
        for tile, start, count in self._pieces:
            first, last = max(begin - at, 0), min(end - at, count)
            if first < last:
                yield tile, start + first, last - first
            at += count


_BETWEEN_PARTS = 3


class Inputs:
    """Element i of rank r is number i + 7 r of a row of few that repeats, so chosen that every result is exact.

    Of a message in several tensors each ``part`` has numbers of its own.
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
        return self.of_each(lambda rank: slice(None))

    def of_each(self, part: Callable[[int], slice]) -> Pattern:
        """A part of what each rank sends, one after another."""
        return Pattern.join(self.of(rank)[part(rank)] for rank in range(self.world_size))

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
