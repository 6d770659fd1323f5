"""The sweep of a collective operation over message sizes.

Protocol: one pass over all sizes to set connections up; per size warm-up, then timed iterations with an untimed
barrier before each; buffers rotate through a large pool so that small messages do not stay in cache; values are
checked exactly, outside the clock, in a call of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from pytest_distbench.errors import RecordingError
from pytest_distbench.workloads.collectives import Buffers, Operation, operation
from pytest_distbench.workloads.collectives.inputs import Inputs
from pytest_distbench.workloads.dtypes import item_bytes

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext

POOL_BYTES = 64 * 2**20
"""Larger than the last-level cache of the machines we know: a rotating buffer comes from memory each time."""

BUDGET_S = 0.12
"""Time per size when the number of iterations is left open. The noise between launches is not reduced by more."""
FEWEST, MOST = 5, 100
LARGE_BYTES = 2**20
"""From here on a call lasts so long that one warm-up iteration is enough."""
_TRIALS = 3

_UNTOUCHED = 255
"""In a buffer that nothing has arrived in: more than any sum of several ranks' inputs."""


def collective_sweep(rank: RankContext) -> None:
    """Sweep the operation that ``rank.params["collective"]`` names. As :func:`sweep`."""
    sweep(rank, operation(rank.params["collective"]))


def sweep(rank: RankContext, measured: Operation) -> None:
    """Record ``latency`` and ``wrong_elements`` at every message size of ``rank.params``.

    Raises:
        AssertionError: an element of a result is wrong.
        ConfigurationError: the operation can send none of the sizes.
    """
    params = rank.params
    item = item_bytes(params["dtype"])
    dtype: torch.dtype = getattr(torch, params["dtype"])
    sizes = measured.message_sizes(params["sizes"], item_bytes=item, world_size=rank.world_size)
    rotate = params["cache"] == "rotate"
    pool = _Pool(measured, rank, dtype, largest=max(sizes) // item, least_bytes=POOL_BYTES if rotate else 0)
    for size in sizes:
        measured.call(pool.slots(size // item)(0))
    facts = {"busbw_factor": measured.busbw_factor(rank.world_size)}
    identity = {
        "mode": "per-iteration",
        "cache": params["cache"],
        "in_place": measured.is_in_place,
        **measured.options,
    }
    for i, size in enumerate(sizes):
        rank.progress(f"{measured.name} {params['dtype']}  size {i + 1}/{len(sizes)}")
        at = {"message_bytes": size}
        if not rank.wants("latency", at):
            continue
        count = size // item
        slot = pool.slots(count)
        iterations = params["iterations"] or _iterations_for(rank, measured, slot)
        warmup = params["warmup"] if size < LARGE_BYTES else min(1, params["warmup"])
        for k in rank.timed("latency", warmup=warmup, iterations=iterations, at=at, identity=identity, facts=facts):
            measured.call(slot(k if rotate else 0))
        if measured.expected is None:
            continue
        wrong, example = _count_wrong(rank, measured, count, dtype)
        rank.record("wrong_elements", wrong, unit="elements", better="exact", at=at)
        assert not wrong, (
            f"{measured.name} {params['dtype']} of {size} B: {wrong} wrong elements over all ranks{example}"
        )


class _Pool:
    """Zeroed memory, handed out in slices. Zeros stay zeros under a sum, however often it is repeated.

    Args:
        measured: whose buffers these are.
        rank: gives world size and device.
        dtype: of the elements.
        largest: elements of the largest message.
        least_bytes: the memory behind each buffer is at least so large.
    """

    def __init__(
        self, measured: Operation, rank: RankContext, dtype: torch.dtype, *, largest: int, least_bytes: int
    ) -> None:
        counts = measured.counts(largest, rank.world_size)
        self._counts = measured.counts
        self._world_size = rank.world_size
        self._aligned = 64 // dtype.itemsize
        self._sent, self._received = (
            # filled: pages are really there
            torch.empty(max(count, least_bytes // dtype.itemsize), dtype=dtype, device=rank.device).fill_(0)
            if count
            else torch.empty(0, dtype=dtype, device=rank.device)
            for count in (counts.sent, 0 if measured.is_in_place else counts.received)
        )
        self._is_in_place = measured.is_in_place

    def slots(self, elements: int) -> Callable[[int], Buffers]:
        """Index -> buffers for a message of so many elements, 64-byte aligned, wrapping around: the clock's part."""
        counts = self._counts(elements, self._world_size)
        sent, received = self._slices(self._sent, counts.sent), self._slices(self._received, counts.received)
        if self._is_in_place:

            def take(k: int) -> Buffers:
                both = sent(k)
                return Buffers(both, both)

            return take
        return lambda k: Buffers(sent(k), received(k))

    def _slices(self, memory: torch.Tensor, count: int) -> Callable[[int], torch.Tensor]:
        stride = max(count, self._aligned)
        num_slots = max(1, memory.numel() // stride)

        def take(k: int) -> torch.Tensor:
            start = (k % num_slots) * stride
            return memory[start : start + count]

        return take


def _iterations_for(rank: RankContext, measured: Operation, slot: Callable[[int], Buffers]) -> int:
    """Iterations, barriers included, that fit the time budget. Decided on rank 0, so that all ranks agree."""
    start = time.perf_counter()
    for k in range(_TRIALS):
        rank.barrier()
        measured.call(slot(k))
        if rank.device.type == "cuda":
            torch.cuda.synchronize(rank.device)
    fitting = BUDGET_S / max((time.perf_counter() - start) / _TRIALS, 1e-9)
    return int(rank.agree(min(MOST, max(FEWEST, fitting))))


def _count_wrong(rank: RankContext, measured: Operation, count: int, dtype: torch.dtype) -> tuple[int, str]:
    """Wrong elements of one call, summed over ranks, and the first wrong one of this rank as text."""
    counts = measured.counts(count, rank.world_size)
    inputs = Inputs(counts.sent, rank=rank.rank, world_size=rank.world_size, dtype=dtype, device=rank.device)
    sent = inputs.of(rank.rank)
    received = sent if measured.is_in_place else sent.new_full((counts.received,), _UNTOUCHED)
    measured.call(Buffers(sent, received))
    expected = None if measured.expected is None else measured.expected(inputs)
    wrong, example = 0, ""
    if expected is not None:
        if expected.shape != received.shape:
            raise RecordingError(
                f"{measured.name}: expected(...) has shape {list(expected.shape)}, what a rank receives "
                f"{list(received.shape)}: the operation's row must give both for the same message"
            )
        differs = received != expected
        wrong = int(differs.sum())
        if wrong:
            where = int(differs.nonzero()[0])
            example = (
                f"; on rank {rank.rank} element {where} is {received[where].item():g}, "
                f"expected {expected[where].item():g}"
            )
    return int(rank.sum_over_ranks(wrong)), example
