"""The memory behind a sweep's buffers: how much, from where, and what fits."""

from __future__ import annotations

import psutil
import pytest
import torch
from support.ranks import make_rank

from pytest_distbench.errors import RecordingError
from pytest_distbench.workloads.collectives import OPERATIONS
from pytest_distbench.workloads.pool import LEAST_BYTES, Pool, least_bytes, sizes_that_fit

ALL_REDUCE = OPERATIONS["all_reduce"]


def test_slots_are_aligned_wrap_around_and_never_overlap() -> None:
    made = Pool(ALL_REDUCE, make_rank(), torch.float32, largest=40, least_bytes=400)
    slot = made.slots(20)
    starts = [slot(k).sent.storage_offset() for k in range(7)]

    assert starts == [0, 20, 40, 60, 80, 0, 20]
    both = slot(3)
    assert both.sent is both.received  # in place
    assert all(slot(k).sent.numel() == 20 for k in range(7))


def test_a_pool_is_larger_than_the_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    assert least_bytes(make_rank()) == LEAST_BYTES

    class B200:
        L2_cache_size = 126 * 2**20

    rank = make_rank()
    rank.device = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: B200)
    assert least_bytes(rank) == 2 * B200.L2_cache_size


def test_sizes_beyond_the_free_memory_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        available = 1000

    monkeypatch.setattr(psutil, "virtual_memory", lambda: Memory)
    assert sizes_that_fit(make_rank(), ALL_REDUCE, [4, 800, 804, 1600], 4) == [4, 800]


def test_ranks_that_share_a_gpu_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = make_rank()
    rank.device, rank.world_size = torch.device("cuda", 0), 4
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 2000))

    assert sizes_that_fit(rank, ALL_REDUCE, [4, 400, 404], 4) == [4, 400]


def test_memory_that_cannot_be_registered_is_told() -> None:
    with pytest.raises(RecordingError, match=r"buffers='registered' needs NCCL on a GPU, .* no process group on cpu"):
        Pool(ALL_REDUCE, make_rank(), torch.float32, largest=4, least_bytes=0, is_registered=True)
