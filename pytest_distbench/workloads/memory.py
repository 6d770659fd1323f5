"""Memory: whether ranks have enough, and which part of its use is judged.

Judged are what the allocator handed out and reserved, and what the device has in use.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping
from typing import TYPE_CHECKING

import psutil
import torch

from pytest_distbench.errors import RecordingError
from pytest_distbench.machine.gpu_watch import own_memory
from pytest_distbench.records.kinds import Better
from pytest_distbench.records.metric import Scalar
from pytest_distbench.units import format_bytes
from pytest_distbench.workloads.collectives import Operation

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext


LEAST_BYTES = 64 * 2**20
"""Bytes of a rotating pool, above the last-level cache of known machines, so that a buffer comes from memory."""

_CACHES = 2  # so many times as large as a GPU's L2 cache (RTX 4090: 72 MiB, B200: 126 MiB)

_MOST_OF_MEMORY = 0.8  # share of the free memory that buffers may take: the backend wants some as well


def least_bytes(rank: RankContext) -> int:
    """Bytes that a pool needs, so that rotating buffers leave every cache of the device."""
    if rank.device.type != "cuda":
        return LEAST_BYTES
    return max(LEAST_BYTES, _CACHES * torch.cuda.get_device_properties(rank.device).L2_cache_size)


def sizes_that_fit(
    rank: RankContext,
    measured: Operation,
    sizes: list[int],
    item_bytes: int,
    *,
    in_place: bool,
    world_size: int,
) -> list[int]:
    """The message sizes whose buffers fit into every rank's memory, in their order. A collective call."""
    free = free_bytes(rank)
    fitting = []
    for size in sizes:
        counts = measured.counts(size // item_bytes, world_size)
        wanted = item_bytes * (max(counts) if in_place else sum(counts))
        if rank.sum_over_ranks(int(wanted > free)) == 0:
            fitting.append(size)
    return fitting


def free_bytes(rank: RankContext) -> float:
    """Bytes that one rank may take: ranks share the memory of the host, and on CUDA may share a device."""
    if rank.device.type == "cuda":
        sharing = -(-rank.world_size // torch.cuda.device_count())
        return _MOST_OF_MEMORY * torch.cuda.mem_get_info(rank.device)[0] / sharing
    return _MOST_OF_MEMORY * psutil.virtual_memory().available / rank.world_size


def expect_room(rank: RankContext, wanted_bytes: int, *, what: str) -> None:
    """Fail in all ranks if one of them does not have ``wanted_bytes`` of memory. A collective call."""
    free = free_bytes(rank)
    if lacking := int(rank.sum_over_ranks(int(wanted_bytes > free))):
        raise RecordingError(
            f"{lacking} of {rank.world_size} ranks have no memory for {what}: wanted {format_bytes(wanted_bytes)}, "
            f"rank {rank.rank} may take {format_bytes(int(free))}; choose a smaller message"
        )


def reset_peak_memory(rank: RankContext) -> None:
    """Forget the peaks so far: :func:`record_peak_memory` records those of what follows. CPUs cannot forget."""
    if rank.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(rank.device)


def record_peak_memory(rank: RankContext, *, at: Mapping[str, Scalar] | None = None) -> None:
    """Record ``memory[of=...]`` in bytes, of the rank with most. They are judged: memory may not grow.

    On CUDA ``of`` is ``allocated`` and ``reserved`` (the peaks of torch's allocator: by tensors, and with what it
    keeps), and ``process``: what this process has in use on the device at this moment, NCCL's buffers and CUDA's
    context included, if the driver reports it. ``device`` is what all processes have, and is not judged. On a CPU it is
    ``resident``: the largest resident size of the process so far.

    Args:
        rank: this process, whose memory is recorded.
        at: distinguishes several in one body, for example ``{"during": "evaluation"}``; call :func:`reset_peak_memory`
            before each of them.

    Raises:
        RecordingError: recorded before at this point.
    """
    if rank.device.type != "cuda":
        found: dict[str, int | None] = {"resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    else:
        free, total = torch.cuda.mem_get_info(rank.device)
        uuid = getattr(torch.cuda.get_device_properties(rank.device), "uuid", "")
        found = {
            "allocated": torch.cuda.max_memory_allocated(rank.device),
            "reserved": torch.cuda.max_memory_reserved(rank.device),
            "process": own_memory(f"GPU-{uuid}"),
            "device": total - free,
        }
    for of, num_bytes in found.items():
        if num_bytes is not None:
            better: Better = "info" if of == "device" else "lower"
            rank.record("memory", num_bytes, unit="B", better=better, at={**(at or {}), "of": of})
