"""Memory: whether ranks have it, and what is judged of it."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest
import torch
from support.ranks import make_rank

from pytest_distbench.errors import RecordingError
from pytest_distbench.workloads import memory
from pytest_distbench.workloads.collectives import OPERATIONS
from pytest_distbench.workloads.memory import record_peak_memory, reset_peak_memory, sizes_that_fit

ALL_REDUCE = OPERATIONS["all_reduce"]


def test_a_pool_is_larger_than_the_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory.least_bytes(make_rank()) == memory.LEAST_BYTES

    class B200:
        L2_cache_size = 126 * 2**20

    rank = make_rank()
    rank.device = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: B200)
    assert memory.least_bytes(rank) == 2 * B200.L2_cache_size


def test_sizes_beyond_the_free_memory_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        available = 1000

    monkeypatch.setattr(psutil, "virtual_memory", lambda: Memory)
    assert sizes_that_fit(make_rank(), ALL_REDUCE, [4, 800, 804, 1600], 4, in_place=True, world_size=1) == [4, 800]


def test_ranks_that_share_a_gpu_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = make_rank()
    rank.device, rank.world_size = torch.device("cuda", 0), 4
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 2000))

    assert sizes_that_fit(rank, ALL_REDUCE, [4, 400, 404], 4, in_place=True, world_size=4) == [4, 400]


def test_a_message_that_does_not_fit_is_an_error_with_the_available_memory() -> None:
    memory.expect_room(make_rank(), 1024, what="a message")

    wanted = (
        r"1 of 1 ranks have no memory for a message: wanted 1\.024e\+06 GiB, rank 0 may take .* GiB; choose a smaller"
    )

    with pytest.raises(RecordingError, match=wanted):
        memory.expect_room(make_rank(), 10**6 * 2**30 + 24000 * 2**30, what="a message")


def test_on_a_cpu_it_is_the_resident_size_of_each_part_of_a_body() -> None:
    rank = make_rank()
    parts: list[dict[str, str]] = [{}, {"during": "training"}, {"during": "evaluation"}]
    for part in parts:
        reset_peak_memory(rank)
        record_peak_memory(rank, at=part)
    found = rank.notebook.observations

    assert [one.at for one in found] == [{**part, "of": "resident"} for part in parts]
    assert {(one.name, one.unit, one.better) for one in found} == {("memory", "B", "lower")}
    assert all(2**24 < one.values[0] < 2**40 for one in found)


@pytest.mark.parametrize("own", [None, 25, 0])
def test_memory_on_a_gpu_is_the_allocators_and_the_processs_if_reported(
    monkeypatch: pytest.MonkeyPatch, own: int | None
) -> None:
    """What all processes have there is shown: a neighbour's is no growth of ours."""
    rank = make_rank()
    rank.device = torch.device("cuda", 0)
    forgotten: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", forgotten.append)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 10)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 20)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (70, 100))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="1-2"))
    monkeypatch.setattr(memory, "own_memory", {"GPU-1-2": own}.__getitem__)
    reset_peak_memory(rank)
    record_peak_memory(rank)

    assert forgotten == [rank.device]
    found = {o.at["of"]: (o.values, o.better) for o in rank.notebook.observations}
    wanted = {"allocated": ([10.0], "lower"), "reserved": ([20.0], "lower"), "device": ([30.0], "info")}
    assert found == wanted | ({} if own is None else {"process": ([float(own)], "lower")})
