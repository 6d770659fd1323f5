"""The calls of a sweep: supported, checked element by element, and prepared before timing begins.

The call itself shows whether a backend supports it. Results are checked in bounded memory. A device is warmed up until
its clocks are steady: an idle GPU takes up to seconds to raise them.
"""

from __future__ import annotations

import contextlib
import statistics
import unittest
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from pytest_distbench.errors import RecordingError
from pytest_distbench.worker.clock import HostClock
from pytest_distbench.worker.torch_internals import coalescing
from pytest_distbench.workloads.collectives import Buffers, Form, Operation, operation
from pytest_distbench.workloads.protocol import Inputs, RepeatedNumbers, Together, groups_of

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext


@dataclass(frozen=True, slots=True)
class Call:
    """A collective call that is ready to :attr:`run` on its buffers; an idle rank's call has no buffers and no form."""

    buffers: Sequence[Buffers]
    form: Form | None
    run: Callable[[], object]

    def copy(self) -> None:
        """Copy each sent buffer to the received one, untimed, for operations that torch has in place only."""
        for sent, received, _ in self.buffers:
            received.copy_(sent)


def join(rank: RankContext, name: str | int) -> Form | None:
    """Make the groups that call at the same time. A collective call.

    Returns how this rank calls in its group, or None if it has none.
    """
    form = None
    for ranks in groups_of(name, rank.world_size):
        group: Any = None if len(ranks) == rank.world_size else dist.new_group(list(ranks))
        if rank.rank in ranks:
            form = Form(ranks=ranks, rank=ranks.index(rank.rank), group=group)
    return form


class Calls:
    """Makes the calls of one operation, on zeroed memory: zeros stay zeros under a sum, however often it is repeated.

    Without ``form`` this rank is idle, next to a group of ``size`` ranks. A message is cut into ``parts`` tensors, sent
    as ``together`` says. In place the smaller buffer is this rank's part of the larger one, or both are the
    same. The largest message has ``largest`` elements; buffers rotate through at least ``least_bytes`` of memory. With
    ``shifts_root`` each call has the next rank as its root.
    """

    def __init__(
        self,
        measured: Operation,
        form: Form | None,
        *,
        size: int,
        device: torch.device,
        dtype: torch.dtype,
        largest: int,
        in_place: bool,
        least_bytes: int = 0,
        parts: int = 1,
        together: Together = "turns",
        shifts_root: bool = False,
        is_registered: bool = False,
    ) -> None:
        self._measured, self._size, self._in_place = measured, size, in_place
        self._parts, self._together = parts, together
        forms = [form]
        if form is not None and shifts_root:
            forms = [replace(form, root=root) for root in range(size)]
        self._forms = [f and replace(f, is_async=together == "async" and parts > 1) for f in forms]
        self._aligned = 64 // dtype.itemsize
        self._kept: list[object] = []
        counts = measured.counts(largest, size)
        least = least_bytes // dtype.itemsize
        wanted = [
            max(parts * max(count, self._aligned), least) if count else 0
            for count in ([max(counts)] if in_place else counts)
        ]
        with _registered_memory(device, self._kept) if is_registered else contextlib.nullcontext():
            self._memory = [
                torch.empty(count, dtype=dtype, device=device).fill_(0)  # filled: pages are really there
                for count in wanted
            ]

    @property
    def period(self) -> int:
        """Number of consecutive calls that differ, by their root: 1 unless ``shifts_root``."""
        return len(self._forms)

    def make(self, elements: int, k: int, *, at: int | None = None) -> Call:
        """Make the call of iteration ``k``, ``elements`` per part, on its own buffers or those of iteration ``at``."""
        form = self._forms[k % self.period]
        if form is None:
            return Call((), None, lambda: None)  # another group calls
        first = (k if at is None else at) * self._parts
        buffers = [self._slot(elements, first + part, form.rank) for part in range(self._parts)]
        call = self._measured.call
        if self._parts == 1:
            return Call(buffers, form, partial(call, buffers[0], form))
        return Call(buffers, form, partial(_send, call, buffers, form, self._together))

    def _slot(self, elements: int, k: int, rank: int) -> Buffers:
        counts = self._measured.counts(elements, self._size)
        cut = []
        for memory, count in zip(self._memory, [max(counts)] if self._in_place else counts, strict=True):
            stride = max(count, self._aligned)
            start = k % max(1, memory.numel() // stride) * stride
            cut.append(memory[start : start + count])
        if self._in_place:  # the smaller of the two is this rank's part of the larger one
            [whole] = cut
            cut = [whole if n == len(whole) else whole[rank * n : (rank + 1) * n] for n in counts]
        sent, received = cut
        parted = {"sent": sent, "received": received}.get(self._measured.in_parts)
        return Buffers(sent, received, None if parted is None else list(parted.chunk(self._size)))


@contextlib.contextmanager
def _registered_memory(device: torch.device, kept: list[object]) -> Iterator[None]:
    """Allocate what is made inside from NCCL's allocator, and register it with the default group at the end.

    torch's documentation of memory pools does the same. ``kept`` is given the pool, which has to outlive its memory.
    """
    group = dist.group.WORLD
    backend = group._get_backend(device) if group is not None else None
    if backend is None or not hasattr(backend, "register_mem_pool"):
        name = dist.get_backend() if dist.is_initialized() else "no process group"
        raise RecordingError(
            f"buffers='registered' needs NCCL on a GPU, and a torch that registers memory pools; here are {name} on "
            f"{device.type}, torch {torch.__version__}"
        )
    try:
        allocator = backend.mem_allocator
    except RuntimeError as error:
        raise unittest.SkipTest(
            "buffers='registered' needs a GPU with NVLink multicast (H100 or later behind NVSwitches) and NCCL 2.19 or "
            f"later: {torch.cuda.get_device_name(device)}: {str(error).splitlines()[0]}"
        ) from None
    pool = torch.cuda.MemPool(allocator)
    kept.append(pool)
    with torch.cuda.use_mem_pool(pool):
        yield
    backend.register_mem_pool(pool)


def _send(call: Callable[[Buffers, Form], Any], buffers: Sequence[Buffers], form: Form, together: Together) -> None:
    with coalescing(form.group) if together == "coalesced" else contextlib.nullcontext():
        works = [call(one, form) for one in buffers]
    for work in works if together == "async" else ():
        for one in work if isinstance(work, list) else [work]:
            one.wait()


_REFUSED = "not support"  # in what torch says of an operation that a backend has not at all

_LONGEST = 200


def refusal(rank: RankContext, make: Callable[[], Call], make_usual: Callable[[], Call | None]) -> str:
    """Why the backend refuses a call, in its words, or "". A collective call.

    Backends check the element type and the reduce operation before anything is sent, in every rank, so the group is
    usable afterwards. ``make_usual`` makes the same call in float32, which every backend takes: if it fails too, the
    call is wrong, and its error is raised. It returns None if the call is in float32 already.
    """
    call = make()
    error = _try(call)
    reason = ""
    if error is not None:  # torch has been seen to put characters into it that nobody can print
        line = next(iter(str(error).splitlines()), "") or type(error).__name__
        reason = "".join(c if c.isprintable() else "?" for c in line)[:_LONGEST]
    refused = rank.sum_over_ranks(int(bool(reason)))
    if not refused:
        return ""
    rank.note_refusal()
    calling = rank.sum_over_ranks(int(call.form is not None))
    digest = zlib.crc32(reason.encode())
    if refused != calling or rank.sum_over_ranks(digest) != calling * rank.agree(digest):
        raise RecordingError(
            f"the backend takes this call in some ranks and refuses it in {refused:.0f}: {reason or 'taken here'}"
        ) from error
    usual = make_usual()
    is_wrong = call.form is not None and (usual is None or _try(usual) is not None)
    if rank.sum_over_ranks(int(is_wrong and _REFUSED not in reason)) and error is not None:
        raise error
    return reason or "refused in the ranks that call"


def expect_sums(rank: RankContext, dtype: str) -> None:
    """Skip the body in all ranks if the backend does not sum elements of a dtype. A collective call."""
    form = Form(ranks=tuple(range(rank.world_size)), rank=rank.rank)

    def summing(name: str) -> Call:
        message = torch.zeros(1, dtype=getattr(torch, name), device=rank.device)
        return Call((), form, lambda: dist.all_reduce(message))

    reason = refusal(rank, lambda: summing(dtype), lambda: None if dtype == "float32" else summing("float32"))
    if reason:
        raise unittest.SkipTest(f"{rank.backend} does not reduce {dtype} here: {reason}")


def _try(call: Call) -> Exception | None:
    try:
        call.run()
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        return error
    return None


CHUNK_ELEMENTS = 2**22
"""Elements that are made and compared at once: a check takes some 100 MiB besides the buffers of any message."""

_WITHOUT_COMPARISON = {
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
}
"""dtypes that torch cannot compare -> dtypes as which their bits can be compared."""


def count_wrong(rank: RankContext, measured: Operation, call: Call, *, copies: bool = False) -> tuple[int, str]:
    """Return wrong elements of a call, summed over ranks, and this rank's first one as text. A collective call.

    The buffers hold zeros afterwards.
    """
    form, expected = call.form, []
    for part, (sent, received, _) in enumerate(call.buffers):
        assert form is not None
        inputs = Inputs(
            sent.numel(),
            rank=form.rank,
            world_size=form.size,
            device=sent.device,
            dtype=str(sent.dtype).removeprefix("torch."),
            redop=form.redop,
            root=form.root,
            part=part,
        )
        pattern = None if measured.expected is None else measured.expected(inputs)
        if pattern is not None:  # what lies there is wrong in every element
            _fill(received, pattern.map(lambda tile: tile == 0))
        _fill(sent, inputs.of(form.rank))
        expected.append((pattern, inputs.ulps))
    if copies:
        call.copy()
    call.run()
    wrong, example = 0, ""
    for (sent, received, _), (pattern, ulps) in zip(call.buffers, expected, strict=True):
        if pattern is not None:
            count, text = _compare(rank, measured, received, pattern, ulps)
            wrong, example = wrong + count, example or text
        sent.fill_(0)
        received.fill_(0)
    return int(rank.sum_over_ranks(wrong)), example


def count_wrong_sums(rank: RankContext, message: torch.Tensor, reduce: Callable[[], object]) -> tuple[int, str]:
    """Check like :func:`count_wrong` a message into which ``reduce`` writes the sum over ranks."""
    form = Form(ranks=tuple(range(rank.world_size)), rank=rank.rank)
    return count_wrong(rank, operation("all_reduce"), Call((Buffers(message, message),), form, reduce))


def _fill(memory: torch.Tensor, pattern: RepeatedNumbers) -> None:
    for begin in range(0, min(memory.numel(), len(pattern)), CHUNK_ELEMENTS):
        end = min(begin + CHUNK_ELEMENTS, memory.numel(), len(pattern))
        memory[begin:end] = pattern.make(begin, end, memory.dtype)


def _compare(
    rank: RankContext, measured: Operation, received: torch.Tensor, expected: RepeatedNumbers, ulps: int
) -> tuple[int, str]:
    if len(expected) != received.numel():
        raise RecordingError(
            f"{measured.name}: expected(...) has {len(expected)} elements, what a rank receives {received.numel()}: "
            "the operation's row must give both for the same message"
        )
    wrong, example = 0, ""
    for begin in range(0, received.numel(), CHUNK_ELEMENTS):
        end = min(begin + CHUNK_ELEMENTS, received.numel())
        found, wanted = received[begin:end], expected.make(begin, end, received.dtype)
        if ulps and found.dtype.is_floating_point:
            allowed = ulps * torch.finfo(found.dtype).eps * wanted.double().abs()
            differs = ~((found.double() - wanted.double()).abs() <= allowed)
        else:
            as_bits = _WITHOUT_COMPARISON.get(found.dtype, found.dtype)
            differs = found.view(as_bits) != wanted.view(as_bits)
        count = int(differs.sum())
        if count and not wrong:
            at = int(differs.nonzero()[0])
            example = (
                f"; on rank {rank.rank} element {begin + at} is {found[at].item():g}, expected {wanted[at].item():g}"
            )
        wrong += count
    return wrong, example


WINDOW_S = 0.1  # calls are made for so long, and give one time

WINDOWS = 3
MOST_S = 5.0

_EQUAL = 0.02
"""Share by which equal times of windows may differ: the steps of a GPU's clock are 1 to 2 %."""


def warm_up(rank: RankContext, call: Callable[[], object]) -> int:
    """Call until the last windows of time took equally long per call, or :data:`MOST_S` are over. A collective call.

    Rank 0's times decide for all. Returns the number of windows.
    """
    each_s = _time(rank, call, 1)
    times: list[float] = []
    begin = HostClock.perf_counter()
    while True:
        calls = int(rank.agree(max(1.0, WINDOW_S // max(each_s, 1e-6))))
        each_s = _time(rank, call, calls)
        times.append(each_s)
        if rank.agree(float(is_steady(times) or HostClock.perf_counter() - begin > MOST_S)):
            return len(times)


def is_steady(times: Sequence[float]) -> bool:
    """Whether the last :data:`WINDOWS` times agree."""
    last = times[-WINDOWS:]
    return len(last) == WINDOWS and max(last) - min(last) <= _EQUAL * statistics.median(last)


def _time(rank: RankContext, call: Callable[[], object], calls: int) -> float:
    rank.synchronize()
    start = HostClock.perf_counter()
    for _ in range(calls):
        call()
    rank.synchronize()
    return (HostClock.perf_counter() - start) / calls
