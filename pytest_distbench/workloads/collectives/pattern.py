"""Pattern: a long row of numbers that repeats itself, of which any part can be made without the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class _Piece:
    """So many numbers of a tile that repeats, from its element ``start`` on."""

    tile: torch.Tensor
    start: int
    count: int


class Pattern:
    """A row of numbers, made of pieces that repeat. It takes no memory: parts are made with :meth:`make`.

    Args:
        pieces: one after another.
    """

    def __init__(self, pieces: Iterable[_Piece]) -> None:
        self._pieces = [piece for piece in pieces if piece.count]

    @classmethod
    def repeat(cls, tile: torch.Tensor, count: int) -> Pattern:
        """The numbers of ``tile``, again and again, ``count`` in all."""
        return cls([_Piece(tile, 0, count)])

    @classmethod
    def join(cls, patterns: Iterable[Pattern]) -> Pattern:
        """One after another, as ``torch.cat`` does."""
        return cls(piece for pattern in patterns for piece in pattern._pieces)

    def __len__(self) -> int:
        return sum(piece.count for piece in self._pieces)

    def __getitem__(self, part: slice) -> Pattern:
        """A part, as of a tensor; without a step.

        Raises:
            ValueError: the slice has a step.
        """
        begin, end, step = part.indices(len(self))
        if step != 1:
            raise ValueError(f"a pattern is cut without a step, found {step}")
        return Pattern(self._cut(begin, end))

    def map(self, rule: Callable[[torch.Tensor], torch.Tensor]) -> Pattern:
        """The numbers that an element-wise rule makes of these."""
        return Pattern(_Piece(rule(piece.tile), piece.start, piece.count) for piece in self._pieces)

    def make(self, begin: int, end: int, dtype: torch.dtype) -> torch.Tensor:
        """The numbers from ``begin`` to ``end``, (end - begin,), on the device of the tiles."""
        made = [
            piece.tile.roll(-(piece.start % len(piece.tile)))
            .to(dtype)
            .repeat(-(-piece.count // len(piece.tile)))[: piece.count]
            for piece in self._cut(begin, end)
        ]
        return torch.cat(made) if made else torch.empty(0, dtype=dtype)

    def _cut(self, begin: int, end: int) -> Iterator[_Piece]:
        at = 0
        for piece in self._pieces:
            first, last = max(begin - at, 0), min(end - at, piece.count)
            if first < last:
                yield _Piece(piece.tile, piece.start + first, last - first)
            at += piece.count
