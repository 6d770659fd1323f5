"""Memory: whether ranks have it, the pool that a sweep's buffers are cut from, and what of it is judged.

Judged are what the allocator handed out and reserved, and what the device has in use.
"""

from __future__ import annotations

import contextlib
import resource
import unittest
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import psutil
import torch
import torch.distributed as dist

from pytest_distbench.errors import RecordingError
from pytest_distbench.machine.gpu_watch import own_memory
from pytest_distbench.records.kinds import Better
from pytest_distbench.records.metric import Scalar
from pytest_distbench.units import format_bytes
from pytest_distbench.workloads.collectives import Buffers, Operation

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext


LEAST_BYTES = 64 * 2**20
"""Larger than the last-level cache of the machines we know: a rotating buffer comes from memory each time."""

_CACHES = 2
"""So many times as large as a GPU's L2 cache (RTX 4090: 72 MiB, B200: 126 MiB)."""

_MOST_OF_MEMORY = 0.8
"""Share of the free memory that buffers may take: the backend wants some as well."""


def least_bytes(rank: RankContext) -> int:
    """How large a pool has to be, so that rotating buffers leave every cache of the device."""
    if rank.device.type != "cuda":
        return LEAST_BYTES
    return max(LEAST_BYTES, _CACHES * torch.cuda.get_device_properties(rank.device).L2_cache_size)


def sizes_that_fit(
    rank: RankContext,
    measured: Operation,
    sizes: list[int],
    item_bytes: int,
    *,
    in_place: bool = True,
    world_size: int | None = None,
) -> list[int]:
    """The message sizes whose buffers every rank has memory for, in their order. A collective call."""
    free = free_bytes(rank)
    fitting = []
    for size in sizes:
        counts = measured.counts(size // item_bytes, world_size or rank.world_size)
        wanted = item_bytes * (max(counts) if in_place else sum(counts))
        if rank.sum_over_ranks(int(wanted > free)) == 0:
            fitting.append(size)
    return fitting


def free_bytes(rank: RankContext) -> float:
    """What one rank may take: ranks share the memory of the host, and on CUDA may share a device."""
    if rank.device.type == "cuda":
        sharing = -(-rank.world_size // torch.cuda.device_count())
        return _MOST_OF_MEMORY * torch.cuda.mem_get_info(rank.device)[0] / sharing
    return _MOST_OF_MEMORY * psutil.virtual_memory().available / rank.world_size


class Pool:
    """Zeroed memory, handed out in slices. Zeros stay zeros under a sum, however often it is repeated.

    Args:
        measured: whose buffers these are; rank and world size are those of its group.
        largest: elements of the largest message.
        least_bytes: the memory behind each buffer is at least so large.
        in_place: the smaller buffer is a part of the larger one, the caller's; or they are the same.
        parts: so many messages have room at the same time.
        is_registered: the memory is NCCL's own, registered with the group.
    """

    def __init__(
        self,
        measured: Operation,
        device: torch.device,
        dtype: torch.dtype,
        *,
        rank: int,
        world_size: int,
        largest: int,
        least_bytes: int,
        in_place: bool,
        parts: int = 1,
        is_registered: bool = False,
    ) -> None:
        self._counts, self._in_parts = measured.counts, measured.in_parts
        self._rank, self._world_size = rank, world_size
        self._in_place = in_place
        self._aligned = 64 // dtype.itemsize
        self._kept: list[object] = []
        counts = self._counts(largest, world_size)
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

    def slots(self, elements: int) -> Callable[[int], Buffers]:
        """Index -> buffers for a message of so many elements, 64-byte aligned, wrapping around."""
        counts = self._counts(elements, self._world_size)
        sizes = [max(counts)] if self._in_place else list(counts)
        strides = [max(size, self._aligned) for size in sizes]

        def take(k: int) -> Buffers:
            cut = []
            for memory, size, stride in zip(self._memory, sizes, strides, strict=True):
                start = k % max(1, memory.numel() // stride) * stride
                cut.append(memory[start : start + size])
            if self._in_place:  # the smaller of the two is this rank's part of the larger one
                [whole] = cut
                first = self._rank
                cut = [whole if n == len(whole) else whole[first * n : (first + 1) * n] for n in counts]
            sent, received = cut
            parted = {"sent": sent, "received": received}.get(self._in_parts)
            return Buffers(sent, received, None if parted is None else list(parted.chunk(self._world_size)))

        return take


@contextlib.contextmanager
def _registered_memory(device: torch.device, kept: list[object]) -> Iterator[None]:
    """What is allocated inside comes from NCCL's allocator, and is registered with the default group at the end.

    As torch's documentation of memory pools does it. ``kept`` is given the pool, which has to outlive its memory.
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


def expect_room(rank: RankContext, wanted_bytes: int, *, what: str) -> None:
    """Fail in all ranks if one of them has no memory for it. A collective call."""
    free = free_bytes(rank)
    if lacking := int(rank.sum_over_ranks(int(wanted_bytes > free))):
        raise RecordingError(
            f"{lacking} of {rank.world_size} ranks have no memory for {what}: wanted {format_bytes(wanted_bytes)}, "
            f"rank {rank.rank} may take {format_bytes(int(free))}; choose a smaller message"
        )


def reset_peak_memory(rank: RankContext) -> None:
    """Forget the peaks so far: :func:`record_peak_memory` then has those of what follows. CPUs cannot forget."""
    if rank.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(rank.device)


def record_peak_memory(rank: RankContext, *, at: Mapping[str, Scalar] | None = None) -> None:
    """Record ``memory[of=...]`` in bytes, of the rank with most. They are judged: memory may not grow.

    On CUDA ``of`` is ``allocated`` and ``reserved`` (the peaks of torch's allocator: by tensors, and with what it
    keeps), and ``process``: what this process has in use on the device at this moment, NCCL's buffers and CUDA's
    context included, where the driver tells. ``device`` is what all have, and is not judged: others are among them. On
    a CPU it is ``resident``: the largest resident size of the process so far.

    Args:
        rank: whose memory it is.
        at: tells several apart in one body, for example ``{"during": "evaluation"}``; call :func:`reset_peak_memory`
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
