"""The sweep of a collective operation over message sizes.

Protocol: one pass over all sizes to set connections up, on a GPU until its clocks are steady; per size warm-up, then
timed iterations with an untimed barrier before each; buffers rotate through a large pool so that small messages do not
stay in cache; values are checked exactly, outside the clock, in a call of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from pytest_distbench.errors import RecordingError
from pytest_distbench.workloads.check import count_wrong
from pytest_distbench.workloads.collectives import Buffers, Operation, operation
from pytest_distbench.workloads.dtypes import item_bytes
from pytest_distbench.workloads.link_model import needs_all_sizes, record_link
from pytest_distbench.workloads.pool import Pool, least_bytes, sizes_that_fit
from pytest_distbench.workloads.steady import warm_up

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext

BUDGET_S = 0.12
"""Time per size when the number of iterations is left open. The noise between launches is not reduced by more."""
FEWEST, MOST = 5, 100
LARGE_BYTES = 2**20
"""From here on a call lasts so long that one warm-up iteration is enough."""
_TRIALS = 3


def collective_sweep(rank: RankContext) -> None:
    """Sweep the operation that ``rank.params["collective"]`` names. As :func:`sweep`."""
    sweep(rank, operation(rank.params["collective"]))


def sweep(rank: RankContext, measured: Operation) -> None:
    """Record ``latency`` and ``wrong_elements`` at every message size of ``rank.params``.

    Raises:
        AssertionError: an element of a result is wrong.
        ConfigurationError: the operation can send none of the sizes.
        RecordingError: there is no memory for any of them, or none that can be registered.
    """
    params = rank.params
    item = item_bytes(params["dtype"])
    dtype: torch.dtype = getattr(torch, params["dtype"])
    sizes = measured.message_sizes(params["sizes"], item_bytes=item, world_size=rank.world_size)
    if params.get("as_memory_allows"):
        sizes = _leave_out_too_large(rank, measured, sizes, item)
    rotate = params["cache"] == "rotate"
    is_registered = params.get("buffers") == "registered"
    pool = Pool(
        measured,
        rank,
        dtype,
        largest=max(sizes) // item,
        least_bytes=least_bytes(rank) if rotate else 0,
        is_registered=is_registered,
    )
    for size in sizes:
        measured.call(pool.slots(size // item)(0))
    if rank.device.type == "cuda":
        warm_up(rank, lambda: measured.call(pool.slots(min(max(sizes), LARGE_BYTES) // item)(0)))
    facts = {"busbw_factor": measured.busbw_factor(rank.world_size)}
    mode = params.get("mode", "per-iteration")
    identity = {
        "mode": mode,
        "cache": params["cache"],
        "in_place": measured.is_in_place,
        **({"buffers": "registered"} if is_registered else {}),
        **measured.options,
    }
    for i, size in enumerate(sizes):
        rank.progress(f"{measured.name} {params['dtype']}  size {i + 1}/{len(sizes)}")
        at = {"message_bytes": size}
        if not (rank.wants("latency", at) or needs_all_sizes(rank)):
            continue
        slot = pool.slots(size // item)
        iterations = params["iterations"] or _iterations_for(rank, measured, slot)
        warmup = params["warmup"] if size < LARGE_BYTES else min(1, params["warmup"])
        for k in rank.timed(
            "latency", warmup=warmup, iterations=iterations, at=at, identity=identity, facts=facts, mode=mode
        ):
            measured.call(slot(k if rotate else 0))
        if measured.expected is None:
            continue
        wrong, example = count_wrong(rank, measured, slot(0))
        rank.record("wrong_elements", wrong, unit="elements", better="exact", at=at)
        assert not wrong, (
            f"{measured.name} {params['dtype']} of {size} B: {wrong} wrong elements over all ranks{example}"
        )
    record_link(rank)


def _leave_out_too_large(rank: RankContext, measured: Operation, sizes: list[int], item: int) -> list[int]:
    """Raises RecordingError where not even the smallest fits."""
    fitting = sizes_that_fit(rank, measured, sizes, item)
    if not fitting:
        raise RecordingError(f"{measured.name}: there is no memory for a message of {min(sizes)} B")
    if len(fitting) < len(sizes):
        rank.record("largest_message", max(fitting), unit="B")
    return fitting


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
