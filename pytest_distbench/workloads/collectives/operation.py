"""A collective operation: all that a sweep has to know of it.

Inputs: what every rank sends in the exact check of an operation; rows of numbers that take no memory until made.

The reduce operations, a row each: torch's name, what ranks send so that the result is exact, and the result.

pytest's process reads the names too, so nothing here imports torch: the functions work on the tensors they are given.

Operation: all that a sweep has to know of one collective.

Definitions as in nccl-tests (``doc/PERFORMANCE.md`` and ``src/*.cu``): ``S`` is the larger of the bytes one rank sends
and receives, ``algbw = S / t``, ``busbw = algbw * factor``. pytest's process reads the rows too, so nothing here
imports torch: a row's functions do, when a rank calls them.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from pytest_distbench.errors import ConfigurationError, look_up
from pytest_distbench.records.metric import Scalar
from pytest_distbench.workloads.protocol import DTYPES

if TYPE_CHECKING:
    import torch.distributed as dist


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


@dataclass(frozen=True, slots=True)
class _Piece:
    """So many numbers of a tile that repeats, from its element ``start`` on."""

    tile: torch.Tensor
    start: int
    count: int


class Pattern:
    """A row of numbers, made of pieces that repeat. It takes no memory: parts are made with :meth:`make`."""

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
        """A part, as of a tensor; without a step."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How a rank makes a call.

    Attributes:
        ranks: of the group, as the default group counts them.
        rank: this rank's place in the group.
        group: None: the default group.
        redop: name of the reduce operation.
        root: in the group.
        is_async: the call returns a work to wait for.
        op: the reduce operation as torch has it.
    """

    ranks: tuple[int, ...]
    rank: int
    group: dist.ProcessGroup | None = None
    redop: str = "sum"
    root: int = 0
    is_async: bool = False
    op: Any = field(init=False)

    def __post_init__(self) -> None:
        import torch.distributed as dist

        object.__setattr__(self, "op", getattr(dist.ReduceOp, REDUCTIONS[self.redop].torch_name))

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return len(self.ranks)

    @property
    def global_root(self) -> int:
        """The root as the default group counts, which is what torch's calls take."""
        return self.ranks[self.root]


class Buffers(NamedTuple):
    """What one call works on. In place they share memory: one tensor twice, or one is a part of the other.

    Attributes:
        sent: by this rank.
        received: by this rank.
        parts: of the one that has a part for each rank, where one has: for calls that take a list.
    """

    sent: torch.Tensor
    received: torch.Tensor
    parts: list[torch.Tensor] | None = None


class Counts(NamedTuple):
    """Elements of one rank's buffers."""

    sent: int
    received: int


def _whole_message(elements: int, _world_size: int) -> Counts:
    return Counts(elements, elements)


def _any_count(_world_size: int) -> int:
    return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One collective operation.

    Attributes:
        name: its torch name.
        busbw_factor: ranks of the group -> busbw / algbw. 0 at one rank, where nothing travels.
        source: where the factor comes from.
        call: makes one call as the form says. With ``form.is_async`` it returns the work.
        expected: what a call must leave in this rank's ``received``, for given inputs, made of theirs:
            ``inputs.of(0)``, ``inputs.of_all()``, ``inputs.reduced()``, cut by slices; None on a rank where nothing
            is to be checked. No function: nothing arrives that could be checked, as of a barrier.
        counts: elements of a message of S bytes, ranks -> elements of one rank's buffers.
        granularity: ranks -> a message has a multiple of so many elements; 0 where nothing is sent.
        alignment: bytes to which each of these parts is rounded, at least an element.
        in_place: the ways it can work, the usual one first: True where the buffers share memory.
        copies: out of place it works on a copy, which is made outside the clock: torch has it in place only.
        reduces: it takes a reduce operation.
        is_rooted: it has a root.
        coalesces: torch can make several calls of it one.
        min_ranks: of a group that can do it.
        options: what else is part of the clock's identity.
    """

    name: str
    busbw_factor: Callable[[int], float]
    source: str
    call: Callable[[Buffers, Form], object]
    expected: Callable[[Inputs], Pattern | None] | None
    counts: Callable[[int, int], Counts] = _whole_message
    granularity: Callable[[int], int] = _any_count
    alignment: int = 1
    in_place: tuple[bool, ...] = (True,)
    copies: bool = False
    reduces: bool = False
    is_rooted: bool = False
    coalesces: bool = False
    min_ranks: int = 1
    options: Mapping[str, Scalar] = field(default_factory=dict)

    @property
    def in_parts(self) -> str:
        """Which buffer has a part for each rank, while the other is one part: sent or received; empty: neither."""
        of_two = self.counts(2, 2)
        return "" if of_two.sent == of_two.received else max(Counts._fields, key=lambda name: getattr(of_two, name))

    def message_sizes(self, sizes: Sequence[int], *, item_bytes: int, world_size: int, parts: int = 1) -> list[int]:
        """The bytes of ``sizes`` as this operation can send them: rounded down, each once, none empty."""
        step = max(item_bytes, self.alignment) * self.granularity(world_size) * parts
        if not step:
            return [0]
        kept = list(dict.fromkeys(size // step * step for size in sizes if size >= step))
        if not kept:
            raise ConfigurationError(
                f"no message size left for {self.name}: on {world_size} ranks it sends multiples of {step} B"
                f"{f' in parts={parts}' if parts > 1 else ''}, the largest size given is {max(sizes, default=0)} B"
            )
        return kept
