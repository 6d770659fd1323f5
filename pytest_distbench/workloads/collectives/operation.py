"""Operation: all that a sweep has to know of one collective.

Definitions as in nccl-tests (``doc/PERFORMANCE.md`` and ``src/*.cu``): ``S`` is the larger of the bytes one rank sends
and receives, ``algbw = S / t``, ``busbw = algbw * factor``. pytest's process reads the rows too, so nothing here
imports torch: a row's functions do, when a rank calls them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.records.metric import Scalar
from pytest_distbench.workloads.protocol import REDUCTIONS

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from pytest_distbench.workloads.collectives.inputs import Inputs, Pattern


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
