"""Memory as metrics."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from support.ranks import make_rank

from pytest_distbench.errors import RecordingError
from pytest_distbench.workloads import memory
from pytest_distbench.workloads.memory import record_peak_memory, reset_peak_memory


def test_on_a_cpu_it_is_the_resident_size() -> None:
    rank = make_rank()
    reset_peak_memory(rank)
    record_peak_memory(rank)

    (found,) = rank.notebook.observations
    assert (found.name, found.at, found.unit, found.better) == ("memory", {"of": "resident"}, "B", "lower")
    assert 2**24 < found.values[0] < 2**40


@pytest.mark.parametrize("own", [None, 25, 0])
def test_on_a_gpu_it_is_the_allocators_and_the_process_s_where_the_driver_tells(
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


def test_each_part_of_a_body_has_its_own() -> None:
    rank = make_rank()
    for part in ("training", "evaluation"):
        reset_peak_memory(rank)
        record_peak_memory(rank, at={"during": part})

    assert [o.at for o in rank.notebook.observations] == [
        {"during": "training", "of": "resident"},
        {"during": "evaluation", "of": "resident"},
    ]


def test_a_point_cannot_take_the_place_of_the_kind() -> None:
    with pytest.raises(RecordingError, match=r"wanted at= without 'of'"):
        record_peak_memory(make_rank(), at={"of": "training"})
