"""The body of a collective sweep.

Protocol: one pass over all sizes to set connections up; per size warm-up, then timed iterations with an untimed
barrier before each; buffers rotate through a large pool so that small messages do not stay in cache; values are
checked exactly, outside the clock, in a call of their own.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from pytest_distbench.workloads.collectives import collective

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

_LARGEST_EXACT_SUM = 256
"""bfloat16 has 8 significant bits: integers up to 256 are exact in every dtype of a sweep."""


def collective_sweep(rank: RankContext) -> None:
    """Record ``latency`` and ``wrong_elements`` at every message size of ``rank.params``.

    Raises:
        AssertionError: an element of a result is wrong.
    """
    params = rank.params
    dtype: torch.dtype = getattr(torch, params["dtype"])
    sizes: list[int] = params["sizes"]
    rotate = params["cache"] == "rotate"
    pool = _Pool(max(POOL_BYTES if rotate else 0, max(sizes)), dtype, rank.device)
    for size in sizes:
        dist.all_reduce(pool.take(size, 0))
    facts = {
        "busbw_factor": collective(params["collective"]).busbw_factor(rank.world_size),
        "mode": "per-iteration",
        "cache": params["cache"],
        "in_place": True,
        "redop": "sum",
    }
    for i, size in enumerate(sizes):
        rank.progress(f"{params['collective']} {params['dtype']}  size {i + 1}/{len(sizes)}")
        at = {"message_bytes": size}
        if not rank.wants("latency", at):
            continue
        iterations = params["iterations"] or _iterations_for(rank, pool, size)
        warmup = params["warmup"] if size < LARGE_BYTES else min(1, params["warmup"])
        for k in rank.timed("latency", warmup=warmup, iterations=iterations, at=at, facts=facts):
            dist.all_reduce(pool.take(size, k if rotate else 0))
        wrong, example = _count_wrong(rank, size, dtype)
        rank.record("wrong_elements", wrong, unit="elements", better="exact", at=at)
        assert not wrong, (
            f"{params['collective']} {params['dtype']} of {size} B: {wrong} wrong elements over all ranks{example}"
        )


class _Pool:
    """A zeroed buffer, handed out in slices. Zeros stay zeros under a sum, however often it is repeated."""

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device) -> None:
        self._item = torch.empty(0, dtype=dtype).element_size()
        self._buffer = torch.empty(size // self._item, dtype=dtype, device=device).fill_(
            0
        )  # filled: pages are really there

    def take(self, message_bytes: int, k: int) -> torch.Tensor:
        """The ``k``-th slice of ``message_bytes``, 64-byte aligned, wrapping around."""
        count = message_bytes // self._item
        stride = max(count, 64 // self._item)
        slots = max(1, self._buffer.numel() // stride)
        start = (k % slots) * stride
        return self._buffer[start : start + count]


def _iterations_for(rank: RankContext, pool: _Pool, size: int) -> int:
    """Iterations, barriers included, that fit the time budget. Decided on rank 0, so that all ranks agree."""
    start = time.perf_counter()
    for k in range(_TRIALS):
        rank.barrier()
        dist.all_reduce(pool.take(size, k))
        if rank.device.type == "cuda":
            torch.cuda.synchronize(rank.device)
    fitting = BUDGET_S / max((time.perf_counter() - start) / _TRIALS, 1e-9)
    return int(rank.agree(min(MOST, max(FEWEST, fitting))))


def _count_wrong(rank: RankContext, size: int, dtype: torch.dtype) -> tuple[int, str]:
    """Wrong elements of one all_reduce, summed over ranks, and the first wrong one of this rank as text.

    Element i of rank r is (i + 7 r) mod m, small enough that every sum is an integer the dtype holds exactly.
    """
    count = size // torch.empty(0, dtype=dtype).element_size()
    period = max(1, _LARGEST_EXACT_SUM // rank.world_size)
    tiles = [(torch.arange(period, device=rank.device) + 7 * r) % period for r in range(rank.world_size)]
    values = _tiled(tiles[rank.rank].to(dtype), count)
    dist.all_reduce(values)
    expected = _tiled(torch.stack(tiles).sum(0).to(dtype), count)
    differs = values != expected
    wrong = int(differs.sum())
    example = ""
    if wrong:
        where = int(differs.nonzero()[0])
        example = (
            f"; on rank {rank.rank} element {where} is {values[where].item():g}, expected {expected[where].item():g}"
        )
    return int(rank.sum_over_ranks(wrong)), example


def _tiled(tile: torch.Tensor, count: int) -> torch.Tensor:
    return tile.repeat(-(-count // len(tile)))[:count].clone()
