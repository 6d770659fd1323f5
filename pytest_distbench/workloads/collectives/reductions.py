"""The reduce operations, a row each: torch's name, what ranks send so that the result is exact, and the result.

pytest's process reads the names too, so nothing here imports torch: the functions work on the tensors they are given.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_distbench.errors import look_up

if TYPE_CHECKING:
    import torch


BETWEEN_RANKS = 7
"""Ranks send the same numbers, each from one on that lies so far behind the other's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """One reduce operation.

    Attributes:
        torch_name: attribute of ``torch.distributed.ReduceOp``.
        numbers: (ranks, largest number that is exact) -> the numbers that ranks send, again and again, each rank from
            another one on.
        combine: (ranks, m) whole numbers -> (m,), their exact result.
        ulps: units in the last place by which a floating result may be off, as nccl-tests allows.
    """

    torch_name: str
    numbers: Callable[[int, int], list[int]]
    combine: Callable[[torch.Tensor], torch.Tensor]
    ulps: int = 0


def _period(most: int) -> int:
    """How many numbers follow each other before they repeat: odd, as the pieces that messages are cut into are even.

    And no multiple of what ranks are apart. Two where there are no more.
    """
    return next((n for n in range(most, 2, -1) if n % 2 and n % BETWEEN_RANKS), 2)


def _small_enough_to_add(ranks: int, largest: int) -> list[int]:
    """0, 1, 2, ... so that the sum over ranks stays exact."""
    return list(range(_period((largest + 1) // ranks)))


def _divisible(ranks: int, largest: int) -> list[int]:
    """Multiples of the ranks where a mean would not be exact otherwise: a power of two divides every float exactly."""
    if ranks & (ranks - 1) == 0:
        return _small_enough_to_add(ranks, largest)
    return [ranks * k for k in _small_enough_to_add(ranks, largest // ranks)]


def _few_factors(ranks: int, _largest: int) -> list[int]:
    """A 2 and a 3 among ones, so far apart that a rank's 2 meets another's 3; each rank's come at another place."""
    length = next(n for n in range(max(ranks, 5), ranks + 8) if n % BETWEEN_RANKS)
    return [2 if i == 0 else 3 if i == BETWEEN_RANKS % length else 1 for i in range(length)]


def _any(_ranks: int, largest: int) -> list[int]:
    """Every number, so mixed that now one rank's is the largest and now another's."""
    length = _period(largest + 1)
    return [11 * i % length for i in range(length)]


REDUCTIONS: dict[str, Reduction] = {
    "sum": Reduction(torch_name="SUM", numbers=_small_enough_to_add, combine=lambda rows: rows.sum(0)),
    "avg": Reduction(torch_name="AVG", numbers=_divisible, combine=lambda rows: rows.sum(0) / len(rows), ulps=2),
    "product": Reduction(torch_name="PRODUCT", numbers=_few_factors, combine=lambda rows: rows.prod(0)),
    "min": Reduction(torch_name="MIN", numbers=_any, combine=lambda rows: rows.amin(0)),
    "max": Reduction(torch_name="MAX", numbers=_any, combine=lambda rows: rows.amax(0)),
    "band": Reduction(
        torch_name="BAND", numbers=_any, combine=lambda rows: functools.reduce(operator.and_, rows.unbind())
    ),
    "bor": Reduction(
        torch_name="BOR", numbers=_any, combine=lambda rows: functools.reduce(operator.or_, rows.unbind())
    ),
    "bxor": Reduction(
        torch_name="BXOR", numbers=_any, combine=lambda rows: functools.reduce(operator.xor, rows.unbind())
    ),
}
"""By the name that ``redop=`` takes."""


def reduction(name: str) -> Reduction:
    """Look a reduce operation up."""
    return look_up(REDUCTIONS, name, "reduce operation")
