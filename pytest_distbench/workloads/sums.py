"""Whether a message that is summed over ranks, in whatever pieces, arrives right: every element, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from pytest_distbench.workloads.collectives.inputs import Inputs
from pytest_distbench.workloads.collectives.pattern import Pattern

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext

_CHUNK_ELEMENTS = 2**20


def count_wrong_sums(rank: RankContext, message: torch.Tensor, reduce: Callable[[], object]) -> tuple[int, str]:
    """Wrong elements of one call, summed over ranks, and the first wrong one of this rank as text. A collective call.

    The backend ``fake`` moves no data: there nothing is wrong.

    Args:
        rank: where it runs.
        message: one dimension. It holds zeros afterwards.
        reduce: leaves the sum over ranks in it.
    """
    if rank.backend == "fake":
        return 0, ""
    inputs = Inputs(message.numel(), rank=rank.rank, world_size=rank.world_size, device=message.device)
    for part, numbers in _chunks(message, inputs.of(rank.rank)):
        part.copy_(numbers)
    reduce()
    wrong, example, begin = 0, "", 0
    for part, numbers in _chunks(message, inputs.combine(lambda rows: rows.sum(0))):
        differs = part != numbers
        count = int(differs.sum())
        if count and not wrong:
            at = int(differs.nonzero()[0])
            found, wanted = part[at].item(), numbers[at].item()
            example = f"; on rank {rank.rank} element {begin + at} is {found:g}, expected {wanted:g}"
        wrong, begin = wrong + count, begin + part.numel()
    message.zero_()
    return int(rank.sum_over_ranks(wrong)), example


def _chunks(message: torch.Tensor, pattern: Pattern) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for begin in range(0, message.numel(), _CHUNK_ELEMENTS):
        part = message[begin : begin + _CHUNK_ELEMENTS]
        yield part, pattern.make(begin, begin + part.numel(), message.dtype)
