"""The collective operations of a sweep: how torch is called, the expected results, and nccl-tests' sizes and factors.

Definitions as in nccl-tests (``doc/PERFORMANCE.md`` and ``src/*.cu``): ``S`` is the larger of the bytes one rank sends
and receives, ``algbw = S / t``, ``busbw = algbw * factor``. pytest's process reads the table too, so nothing here
imports torch: a row's functions do, when a rank calls them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_distbench.errors import ConfigurationError, look_up
from pytest_distbench.records.metric import Scalar
from pytest_distbench.workloads.protocol import Inputs, RepeatedNumbers

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist


_OLDER = {"all_gather_single": "all_gather_into_tensor", "reduce_scatter_single": "reduce_scatter_tensor"}
"""Name in torch 2.13 and later -> name before, of which later ones warn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How a rank calls a collective: its group, root and reduce operation.

    Attributes:
        ranks: ranks of the group, by their numbers in the default group.
        rank: number of this rank in the group.
        group: process group, or None for the default group.
        redop: name of the reduce operation: ``sum``.
        root: number of the root in the group.
        is_async: whether the call returns a work to wait for.
        op: the reduce operation as torch's ``ReduceOp``.
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

        object.__setattr__(self, "op", getattr(dist.ReduceOp, self.redop.upper()))

    def call(self, name: str, *buffers: object, **how: object) -> Any:
        """Call the function of torch.distributed with this name, or its older one, with group and ``async_op``."""
        import torch.distributed as dist

        function = getattr(dist, name, None) or getattr(dist, _OLDER[name])
        return function(*buffers, **how, group=self.group, async_op=self.is_async)

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def global_root(self) -> int:
        """The root's rank in the default group, which torch's calls take."""
        return self.ranks[self.root]


class Buffers(NamedTuple):
    """The buffers of one call. In place they share memory: one tensor twice, or one is a part of the other.

    Attributes:
        sent: tensor that this rank sends.
        received: tensor that this rank receives into.
        parts: views of the buffer that has a part for each rank, one per rank, for calls that take a list.
    """

    sent: torch.Tensor
    received: torch.Tensor
    parts: list[torch.Tensor] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One collective operation.

    Attributes:
        name: torch's name of the operation: ``all_reduce``.
        busbw_factor: ranks of the group -> busbw / algbw. 0 at one rank, where nothing travels.
        source: where the factor comes from.
        call: makes one call as the form says. With ``form.is_async`` it returns the work.
        expected: contents of this rank's ``received`` after a call, made of its ``inputs``: ``inputs.of(0)``,
            ``inputs.of_all()``, ``inputs.reduced()``, cut by slices; None on a rank without a result. The function
            itself is None if there is nothing to check, as for a barrier.
        counts: elements of a message of S bytes, ranks -> elements that one rank sends, and that it receives.
        granularity: ranks -> a message has a multiple of so many elements; 0 if nothing is sent.
        alignment: bytes to which each of these parts is rounded, at least an element.
        in_place: the ways it can work, the usual one first: True if the buffers share memory.
        copies: out of place it works on a copy, which is made untimed: torch has it in place only.
        reduces: whether it takes a reduce operation.
        is_rooted: whether it has a root.
        coalesces: torch can make several calls of it one.
        min_ranks: fewest ranks of a group that can do it.
        options: further parts of the timing's identity.
    """

    name: str
    busbw_factor: Callable[[int], float]
    source: str
    call: Callable[[Buffers, Form], object]
    expected: Callable[[Inputs], RepeatedNumbers | None] | None
    counts: Callable[[int, int], tuple[int, int]] = lambda elements, n: (elements, elements)
    granularity: Callable[[int], int] = lambda n: 1
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
        """The buffer that has a part for each rank, if the other is one part: "sent", "received" or ""."""
        sent, received = self.counts(2, 2)
        return "" if sent == received else "sent" if sent > received else "received"

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


def _own_part(inputs: Inputs) -> slice:
    part = inputs.count // inputs.world_size
    return slice(inputs.rank * part, (inputs.rank + 1) * part)


def _of_root(buffers: Buffers, form: Form) -> list[torch.Tensor] | None:
    return buffers.parts if form.rank == form.root else None


def _splits(count: int, rank: int, size: int) -> list[int]:
    """Number of elements that a rank sends to, and receives from, each rank in an unequal all-to-all.

    Rank r sends (r + d) mod n + 1 shares to rank d: every rank sends and receives the same sum, in unequal parts.
    """
    share = count // _all_shares(size)
    return [share * ((rank + other) % size + 1) for other in range(size)]


def _all_shares(size: int) -> int:
    return size * (size + 1) // 2


def _all_to_all_v(buffers: Buffers, form: Form) -> object:
    splits = _splits(buffers.sent.numel(), form.rank, form.size)
    return form.call("all_to_all_single", buffers.received, buffers.sent, splits, splits)


def _unequal_parts(inputs: Inputs) -> RepeatedNumbers:
    def part(rank: int) -> slice:
        splits = _splits(inputs.count, rank, inputs.world_size)
        begin = sum(splits[: inputs.rank])
        return slice(begin, begin + splits[inputs.rank])

    return inputs.of_each(part)


def _send_recv(buffers: Buffers, form: Form) -> object:
    import torch.distributed as dist

    following, before = form.ranks[(form.rank + 1) % form.size], form.ranks[form.rank - 1]
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, buffers.sent, following, form.group),
            dist.P2POp(dist.irecv, buffers.received, before, form.group),
        ]
    )
    if form.is_async:
        return works
    for work in works:
        work.wait()
    return None


_in_parts = partial(Operation, busbw_factor=lambda n: (n - 1) / n, granularity=lambda n: n, alignment=16)
"""Constructor of an :class:`Operation` whose messages have a part for each rank, with its factor and alignment."""

_ROWS = [
    Operation(
        name="all_reduce",
        busbw_factor=lambda n: 2 * (n - 1) / n,
        source="nccl-tests src/all_reduce.cu",
        call=lambda buffers, form: form.call("all_reduce", buffers.received, op=form.op),
        expected=lambda inputs: inputs.reduced(),
        in_place=(True, False),
        copies=True,
        reduces=True,
        coalesces=True,
    ),
    _in_parts(
        name="all_gather",
        source="nccl-tests src/all_gather.cu",
        call=lambda buffers, form: form.call("all_gather_single", buffers.received, buffers.sent),
        expected=lambda inputs: inputs.of_all(),
        counts=lambda elements, n: (elements // n, elements),
        in_place=(False, True),
        coalesces=True,
    ),
    _in_parts(
        name="reduce_scatter",
        source="nccl-tests src/reduce_scatter.cu",
        call=lambda buffers, form: form.call("reduce_scatter_single", buffers.received, buffers.sent, op=form.op),
        expected=lambda inputs: inputs.reduced()[_own_part(inputs)],
        counts=lambda elements, n: (elements, elements // n),
        in_place=(False, True),
        reduces=True,
        coalesces=True,
    ),
    Operation(
        name="broadcast",
        busbw_factor=lambda n: float(n > 1),
        source="nccl-tests src/broadcast.cu",
        call=lambda buffers, form: form.call("broadcast", buffers.received, src=form.global_root),
        expected=lambda inputs: inputs.of(inputs.root),
        is_rooted=True,
    ),
    Operation(
        name="reduce",
        busbw_factor=lambda n: float(n > 1),
        source="nccl-tests src/reduce.cu",
        call=lambda buffers, form: form.call("reduce", buffers.received, form.global_root, op=form.op),
        expected=lambda inputs: inputs.reduced() if inputs.rank == inputs.root else None,
        in_place=(True, False),
        copies=True,
        reduces=True,
        is_rooted=True,
    ),
    _in_parts(
        name="gather",
        source="nccl-tests src/gather.cu",
        call=lambda buffers, form: form.call("gather", buffers.sent, _of_root(buffers, form), dst=form.global_root),
        expected=lambda inputs: inputs.of_all() if inputs.rank == inputs.root else None,
        counts=lambda elements, n: (elements // n, elements),
        in_place=(False,),
        is_rooted=True,
    ),
    _in_parts(
        name="scatter",
        source="nccl-tests src/scatter.cu",
        call=lambda buffers, form: form.call(
            "scatter", buffers.received, _of_root(buffers, form), src=form.global_root
        ),
        expected=lambda inputs: inputs.of(inputs.root)[_own_part(inputs)],
        counts=lambda elements, n: (elements, elements // n),
        in_place=(False,),
        is_rooted=True,
    ),
    _in_parts(
        name="all_to_all",
        source="nccl-tests src/alltoall.cu",
        call=lambda buffers, form: form.call("all_to_all_single", buffers.received, buffers.sent),
        expected=lambda inputs: inputs.of_each(lambda rank: _own_part(inputs)),
        in_place=(False,),
    ),
    Operation(
        name="all_to_all_v",
        busbw_factor=lambda n: (n - 1) / n,
        source="nccl-tests src/alltoallv.cu",
        call=_all_to_all_v,
        expected=_unequal_parts,
        granularity=_all_shares,
        alignment=16,
        in_place=(False,),
    ),
    Operation(
        name="send_recv",
        busbw_factor=lambda n: float(n > 1),
        source="nccl-tests src/sendrecv.cu",
        call=_send_recv,
        expected=lambda inputs: inputs.of((inputs.rank - 1) % inputs.world_size),
        in_place=(False,),
        min_ranks=2,  # backends differ in whether a rank may send to itself
    ),
    Operation(
        name="barrier",
        busbw_factor=lambda n: 0.0,
        source="nothing is sent",
        call=lambda buffers, form: form.call("barrier"),
        expected=None,
        granularity=lambda n: 0,
    ),
]
OPERATIONS = {row.name: row for row in _ROWS}  # by torch name


def operation(name: str) -> Operation:
    """Look an operation up by its torch name."""
    hint = "; one of your own is named by file and row, as 'my_operations.py::BROADCAST'"
    return look_up(OPERATIONS, name, "collective", hint=hint)
