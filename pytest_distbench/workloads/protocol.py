"""Choices of a sweep: its element types, reduce operations, sizes, groups and transports. Without torch.

pytest's process reads them too; inputs and expected results are made in ranks, with torch.

A transport is a way in which a backend sends, chosen by environment variables.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from pytest_distbench.errors import ConfigurationError, look_up, show
from pytest_distbench.records.wanted import Mode, OverRanks

if TYPE_CHECKING:
    import torch

    _Piece = tuple[torch.Tensor, int, int]
    """A tile that repeats, from which of its elements on, and how many numbers."""


DTYPES: dict[str, tuple[int, int]] = {
    "float32": (4, 256),
    "float16": (2, 256),
    "bfloat16": (2, 256),  # 8 significant bits
    "float64": (8, 256),
    "float8_e4m3fn": (1, 16),
    "float8_e5m2": (1, 8),
    "int8": (1, 127),
    "int16": (2, 256),
    "int32": (4, 256),
    "int64": (8, 256),
    "uint8": (1, 255),
    "uint16": (2, 256),
    "uint32": (4, 256),
    "uint64": (8, 256),
    "bool": (1, 1),
    "complex64": (8, 256),
    "complex128": (16, 256),
}
"""Bytes of an element by torch's name of the dtype, and the largest number up to which whole numbers are exact.

A sweep can ask for any of them; whether a backend supports it, a call shows."""


def item_bytes(dtype: str) -> int:
    """Bytes of an element of a dtype."""
    return look_up(DTYPES, dtype, "dtype")[0]


BETWEEN_RANKS = 7  # ranks send the same numbers, each from one on that lies so far behind the other's


def _period(most: int) -> int:
    """Largest length up to ``most`` after which an input's numbers may repeat, or 2 if none is suitable.

    Suitable is an odd one, as messages are cut into even pieces, that is no multiple of :data:`BETWEEN_RANKS`.
    """
    return next((n for n in range(most, 2, -1) if n % 2 and n % BETWEEN_RANKS), 2)


def _small_enough_to_add(ranks: int, largest: int) -> list[int]:
    """0, 1, 2, ... so that the sum over ranks stays exact."""
    return list(range(_period((largest + 1) // ranks)))


def _divisible(ranks: int, largest: int) -> list[int]:
    """Multiples of the number of ranks, for an exact mean; a power of two divides every float exactly."""
    if ranks & (ranks - 1) == 0:
        return _small_enough_to_add(ranks, largest)
    return [ranks * k for k in _small_enough_to_add(ranks, largest // ranks)]


def _few_factors(ranks: int, _largest: int) -> list[int]:
    """A 2 and a 3 among ones, so far apart that a rank's 2 meets another's 3; each rank has them at other places."""
    length = next(n for n in range(max(ranks, 5), ranks + 8) if n % BETWEEN_RANKS)
    return [2 if i == 0 else 3 if i == BETWEEN_RANKS % length else 1 for i in range(length)]


def _any(_ranks: int, largest: int) -> list[int]:
    """Every number up to the largest, mixed so that the largest is now one rank's and now another's."""
    length = _period(largest + 1)
    return [11 * i % length for i in range(length)]


Reduction = tuple[Callable[[int, int], list[int]], Callable[["torch.Tensor"], "torch.Tensor"], int]

REDUCTIONS: dict[str, Reduction] = {
    "sum": (_small_enough_to_add, lambda rows: rows.sum(0), 0),
    "avg": (_divisible, lambda rows: rows.sum(0) / len(rows), 2),
    "product": (_few_factors, lambda rows: rows.prod(0), 0),
    "min": (_any, lambda rows: rows.amin(0), 0),
    "max": (_any, lambda rows: rows.amax(0), 0),
    "band": (_any, lambda rows: functools.reduce(operator.and_, rows.unbind()), 0),
    "bor": (_any, lambda rows: functools.reduce(operator.or_, rows.unbind()), 0),
    "bxor": (_any, lambda rows: functools.reduce(operator.xor, rows.unbind()), 0),
}
"""Reduce operations by ``redop=``, which ``torch.distributed.ReduceOp`` has in capitals:

- (ranks, largest number that is exact) -> the numbers that ranks send repeatedly, each from another one on;
- (ranks, m) whole numbers -> (m,), their exact result;
- units in the last place by which a floating result may be off, as nccl-tests allows."""


class RepeatedNumbers:
    """A row of numbers, made of repeating pieces. It takes no memory: parts are made with :meth:`make`."""

    def __init__(self, pieces: Iterable[_Piece]) -> None:
        self._pieces = [piece for piece in pieces if piece[2]]

    @classmethod
    def repeat(cls, tile: torch.Tensor, count: int) -> RepeatedNumbers:
        """A row of ``count`` numbers that repeats those of ``tile``."""
        return cls([(tile, 0, count)])

    @classmethod
    def join(cls, patterns: Iterable[RepeatedNumbers]) -> RepeatedNumbers:
        """Join rows, as ``torch.cat`` does."""
        return cls(piece for pattern in patterns for piece in pattern._pieces)

    def __len__(self) -> int:
        return sum(count for _, _, count in self._pieces)

    def __getitem__(self, part: slice) -> RepeatedNumbers:
        """Return the numbers of a slice without a step, as of a tensor."""
        begin, end, _ = part.indices(len(self))
        return RepeatedNumbers(self._cut(begin, end))

    def map(self, rule: Callable[[torch.Tensor], torch.Tensor]) -> RepeatedNumbers:
        """Return the row after an element-wise function was applied to its numbers."""
        return RepeatedNumbers((rule(tile), start, count) for tile, start, count in self._pieces)

    def make(self, begin: int, end: int, dtype: torch.dtype) -> torch.Tensor:
        """Make the numbers from ``begin`` to ``end``, (end - begin,), on the device of the tiles."""
        import torch

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
    """Inputs of all ranks: element i of rank r is number i + 7 r of a short repeating row. Every result is exact.

    Each ``part`` of a message has numbers of its own. A floating result may be off by ``ulps`` units in the last place.
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
        import torch

        self.count = count
        self.rank = rank
        self.world_size = world_size
        self.root = root
        self._part = part
        numbers, self._combine, self.ulps = REDUCTIONS[redop]
        self._numbers = torch.tensor(numbers(world_size, DTYPES[dtype][1]), device=device)

    def of(self, rank: int) -> RepeatedNumbers:
        """Input of ``rank``, ``count`` numbers."""
        return RepeatedNumbers.repeat(self._tile(rank), self.count)

    def of_all(self) -> RepeatedNumbers:
        """Inputs of all ranks, one after another, ``world_size * count`` numbers."""
        return self.of_each(lambda rank: slice(None))

    def of_each(self, part: Callable[[int], slice]) -> RepeatedNumbers:
        """A part of each rank's input, one after another."""
        return RepeatedNumbers.join(self.of(rank)[part(rank)] for rank in range(self.world_size))

    def reduced(self) -> RepeatedNumbers:
        """All ranks' inputs, reduced by the call's operation, ``count`` numbers."""
        return self.combine(self._combine)

    def combine(self, rule: Callable[[torch.Tensor], torch.Tensor]) -> RepeatedNumbers:
        """Combine all ranks' inputs by an element-wise rule into ``count`` numbers.

        Args:
            rule: (world size, m) numbers -> (m,), for example ``lambda rows: rows.sum(0)``.
        """
        import torch

        return RepeatedNumbers.repeat(rule(torch.stack([self._tile(r) for r in range(self.world_size)])), self.count)

    def _tile(self, rank: int) -> torch.Tensor:
        return self._numbers.roll(-(BETWEEN_RANKS * rank + _BETWEEN_PARTS * self._part))


Transport = tuple[Mapping[str, Mapping[str, str]], tuple[str, ...]]
"""Backend -> environment variables of the ranks that choose the transport; and its collectives, or () for all.

A backend that is missing does not have the transport."""


def _nccl(*collectives: str, **variables: str) -> Transport:
    return {"nccl": variables}, collectives


TRANSPORTS: dict[str, Transport] = {
    "ring": _nccl(NCCL_ALGO="Ring"),
    "tree": _nccl("all_reduce", NCCL_ALGO="Tree"),
    "simple": _nccl(NCCL_PROTO="Simple"),  # whole chunks, for bandwidth
    "ll": _nccl(NCCL_PROTO="LL"),  # flags between the data, for latency
    "ll128": _nccl(NCCL_PROTO="LL128"),  # the same in lines of 128 bytes, over NVLink
    "shm": _nccl(NCCL_P2P_DISABLE="1"),  # through the host's memory, where GPUs of a host would reach each other
    "socket": _nccl(NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1", NCCL_NET="Socket"),  # also within a host
}
"""Transports by ``transport=``. gloo has none: in torch's builds for Linux TCP is all there is."""


def mlbench_sizes(item_size: int) -> list[int]:
    """Message sizes in bytes of MLBench task 0a: ``numpy.logspace(0, 8, num=80)`` elements, as integers.

    The small counts repeat (1, 1, 1, 2, ...); each is listed once. Source: MLBench benchmark-tasks.rst, 0.a.
    """
    counts = {int(10 ** (8 * i / 79)) for i in range(80)}
    return [count * item_size for count in sorted(counts)]


_GROUPS: dict[str, Callable[[int], list[range]]] = {
    "all": lambda n: [range(n)],
    "half": lambda n: [range(n // 2)],
    "halves": lambda n: [range(n // 2), range(n // 2, n // 2 * 2)],
}
"""Groups that call at the same time, from the world size, by name. The other ranks are idle."""


def groups_of(name: str | int, world_size: int) -> list[tuple[int, ...]]:
    """Ranks of each group: ``all``, ``half`` (others idle), ``halves`` (both at once), or the first so many ranks."""
    if isinstance(name, int) and not isinstance(name, bool):
        found = [range(min(name, world_size))]
        if not 2 <= name <= world_size:
            raise ConfigurationError(f"group={name}: wanted 2 to {world_size} ranks, the world size")
    elif isinstance(name, str) and name in _GROUPS:
        found = _GROUPS[name](world_size)
    else:
        raise ConfigurationError(f"group={show(name)}: wanted one of {', '.join(_GROUPS)}, or a number of ranks")
    if name != "all" and min(map(len, found)) < 2:
        raise ConfigurationError(f"group={name!r} of {world_size} ranks is one rank: it needs 4 ranks, --world-size 4")
    return [tuple(group) for group in found]


Cache = Literal["rotate", "hot"]  # whether buffers move through a memory larger than the caches, or stay

MemoryKind = Literal["plain", "registered"]
Together = Literal["turns", "coalesced", "async"]
"""Ways to send the tensors of one message: one after the other, as one call of torch's, or several at once."""

CACHES: tuple[Cache, ...] = get_args(Cache)
MEMORY_KINDS: tuple[MemoryKind, ...] = get_args(MemoryKind)
TOGETHER: tuple[Together, ...] = get_args(Together)

SHIFT = "shift"  # as root: each iteration has the next rank as its root


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Message sizes that have a name, and how they are measured unless the call says otherwise.

    Attributes:
        sizes: message sizes in bytes, from the bytes of an element.
        iterations: timed per size, or None for as many as fit a time budget.
        warmup: untimed iterations per size.
        mode: mode of timing, as for ``rank.timed``.
        over_ranks: how an iteration's time is made from the ranks' times.
        as_memory_allows: the largest sizes are left out if a rank has no memory for them.
    """

    sizes: Callable[[int], list[int]]
    iterations: int | None = None
    warmup: int = 5
    mode: Mode = "per-iteration"
    over_ranks: OverRanks = "max"
    as_memory_allows: bool = False


PRESETS: dict[str, Preset] = {
    "powers": Preset(sizes=lambda item: [2**k for k in range(2, 27)]),
    "small": Preset(sizes=lambda item: [2**8, 2**12, 2**16, 2**20]),
    "gpu": Preset(sizes=lambda item: [2**k for k in range(10, 34)], as_memory_allows=True),
    "mlbench": Preset(sizes=mlbench_sizes, iterations=100),  # as task 0a
    # as nccl-tests without options: calls in one breath after one, the mean over ranks
    "nccl-tests": Preset(sizes=lambda item: [32 * 2**20], iterations=20, warmup=1, mode="batch", over_ranks="mean"),
}
"""Presets by ``sizes=``."""
