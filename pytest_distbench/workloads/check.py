"""Whether an operation delivers what it should, element by element, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from pytest_distbench.errors import RecordingError
from pytest_distbench.workloads.calls import Call
from pytest_distbench.workloads.collectives import Buffers, Form, Operation, operation
from pytest_distbench.workloads.collectives.inputs import Inputs, Pattern

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext

CHUNK_ELEMENTS = 2**22
"""Made and compared at once: the check of a message takes some 100 MiB besides its buffers, however large it is."""

_WITHOUT_COMPARISON = {
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
}
"""Types that torch cannot compare -> as what their bits can be."""


def count_wrong(rank: RankContext, measured: Operation, call: Call, *, copies: bool = False) -> tuple[int, str]:
    """Wrong elements of one call, summed over ranks, and the first wrong one of this rank as text. A collective call.

    The buffers hold zeros afterwards.
    """
    expected = [_prepare(measured, one, call.form, part) for part, one in enumerate(call.buffers)]
    if copies:
        call.copy()
    call.run()
    wrong, example = 0, ""
    for one, wanted in zip(call.buffers, expected, strict=True):
        if wanted is not None:
            pattern, ulps = wanted
            count, text = _compare(rank, measured, one.received, pattern, ulps)
            wrong, example = wrong + count, example or text
    for sent, received, _ in call.buffers:
        sent.fill_(0)
        received.fill_(0)
    return int(rank.sum_over_ranks(wrong)), example


def count_wrong_sums(rank: RankContext, message: torch.Tensor, reduce: Callable[[], object]) -> tuple[int, str]:
    """The same of a message that is summed in place by whatever calls: ``reduce`` leaves the sum over ranks in it."""
    form = Form(ranks=tuple(range(rank.world_size)), rank=rank.rank)
    return count_wrong(rank, operation("all_reduce"), Call((Buffers(message, message),), form, reduce))


def _prepare(measured: Operation, buffers: Buffers, form: Form | None, part: int) -> tuple[Pattern, int] | None:
    """Put in what is sent, and what is wrong in every element where it should arrive; returns what should."""
    assert form is not None
    sent, received, _ = buffers
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
    expected = None if measured.expected is None else measured.expected(inputs)
    if expected is not None:
        _fill(received, expected.map(lambda tile: tile == 0))
    _fill(sent, inputs.of(form.rank))
    return None if expected is None else (expected, inputs.ulps)


def _fill(memory: torch.Tensor, pattern: Pattern) -> None:
    for begin in range(0, min(memory.numel(), len(pattern)), CHUNK_ELEMENTS):
        end = min(begin + CHUNK_ELEMENTS, memory.numel(), len(pattern))
        memory[begin:end] = pattern.make(begin, end, memory.dtype)


def _compare(
    rank: RankContext, measured: Operation, received: torch.Tensor, expected: Pattern, ulps: int
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
        differs = _differs(found, wanted, ulps)
        count = int(differs.sum())
        if count and not wrong:
            at = int(differs.nonzero()[0])
            example = (
                f"; on rank {rank.rank} element {begin + at} is {found[at].item():g}, expected {wanted[at].item():g}"
            )
        wrong += count
    return wrong, example


def _differs(found: torch.Tensor, wanted: torch.Tensor, ulps: int) -> torch.Tensor:
    """Where two tensors are not equal; of a floating result that may be off, where it is further off."""
    if ulps and found.dtype.is_floating_point:
        allowed = ulps * torch.finfo(found.dtype).eps * wanted.double().abs()
        return ~((found.double() - wanted.double()).abs() <= allowed)
    as_bits = _WITHOUT_COMPARISON.get(found.dtype)
    if as_bits is not None:
        found, wanted = found.view(as_bits), wanted.view(as_bits)
    return found != wanted
