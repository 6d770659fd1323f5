"""Whether an operation delivers what it should, element by element, in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pytest_distbench.errors import RecordingError
from pytest_distbench.workloads.collectives import Buffers, Operation
from pytest_distbench.workloads.collectives.inputs import Inputs
from pytest_distbench.workloads.collectives.pattern import Pattern

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext

CHUNK_ELEMENTS = 2**22
"""Made and compared at once: the check of a message takes some 100 MiB besides its buffers, however large it is."""

_UNTOUCHED = 255
"""In a buffer that nothing has arrived in: more than any sum of several ranks' inputs."""


def count_wrong(rank: RankContext, measured: Operation, buffers: Buffers) -> tuple[int, str]:
    """Wrong elements of one call, summed over ranks, and the first wrong one of this rank as text. A collective call.

    Args:
        rank: where it runs.
        measured: what is called.
        buffers: of one message. They hold zeros afterwards.

    Raises:
        RecordingError: the operation contradicts itself about the elements that a rank receives.
    """
    inputs = Inputs(buffers.sent.numel(), rank=rank.rank, world_size=rank.world_size, device=rank.device)
    received = buffers.received
    received.fill_(_UNTOUCHED)
    _fill(buffers.sent, inputs.of(rank.rank))
    measured.call(buffers)
    expected = None if measured.expected is None else measured.expected(inputs)
    wrong, example = (0, "") if expected is None else _compare(rank, measured, received, expected)
    buffers.sent.fill_(0)
    received.fill_(0)
    return int(rank.sum_over_ranks(wrong)), example


def _fill(memory: torch.Tensor, pattern: Pattern) -> None:
    for begin in range(0, memory.numel(), CHUNK_ELEMENTS):
        end = min(begin + CHUNK_ELEMENTS, memory.numel())
        memory[begin:end] = pattern.make(begin, end, memory.dtype)


def _compare(rank: RankContext, measured: Operation, received: torch.Tensor, expected: Pattern) -> tuple[int, str]:
    if len(expected) != received.numel():
        raise RecordingError(
            f"{measured.name}: expected(...) has {len(expected)} elements, what a rank receives {received.numel()}: "
            "the operation's row must give both for the same message"
        )
    wrong, example = 0, ""
    for begin in range(0, received.numel(), CHUNK_ELEMENTS):
        end = min(begin + CHUNK_ELEMENTS, received.numel())
        found, wanted = received[begin:end], expected.make(begin, end, received.dtype)
        differs = found != wanted
        count = int(differs.sum())
        if count and not wrong:
            at = int(differs.nonzero()[0])
            example = (
                f"; on rank {rank.rank} element {begin + at} is {found[at].item():g}, expected {wanted[at].item():g}"
            )
        wrong += count
    return wrong, example
