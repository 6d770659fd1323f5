"""Pool: the memory from which the buffers of a sweep's calls are cut."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import psutil
import torch
import torch.distributed as dist

from pytest_distbench.errors import RecordingError
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


def sizes_that_fit(rank: RankContext, measured: Operation, sizes: list[int], item_bytes: int) -> list[int]:
    """The message sizes whose buffers every rank has memory for, in their order. A collective call.

    Args:
        rank: where they are wanted.
        measured: the operation whose buffers they are.
        sizes: bytes.
        item_bytes: of one element.
    """
    free = free_bytes(rank)
    fitting = []
    for size in sizes:
        counts = measured.counts(size // item_bytes, rank.world_size)
        wanted = item_bytes * (counts.sent + (0 if measured.is_in_place else counts.received))
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
        measured: whose buffers these are.
        rank: gives world size and device.
        dtype: of the elements.
        largest: elements of the largest message.
        least_bytes: the memory behind each buffer is at least so large.
        is_registered: the memory is NCCL's own, registered with the group.

    Raises:
        RecordingError: memory is to be registered where that cannot be done.
    """

    def __init__(
        self,
        measured: Operation,
        rank: RankContext,
        dtype: torch.dtype,
        *,
        largest: int,
        least_bytes: int,
        is_registered: bool = False,
    ) -> None:
        counts = measured.counts(largest, rank.world_size)
        self._counts = measured.counts
        self._world_size = rank.world_size
        self._aligned = 64 // dtype.itemsize
        self._kept: list[object] = []
        with _registered_memory(rank.device, self._kept) if is_registered else contextlib.nullcontext():
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
    pool = torch.cuda.MemPool(backend.mem_allocator)
    kept.append(pool)
    with torch.cuda.use_mem_pool(pool):
        yield
    backend.register_mem_pool(pool)
