"""Memory as metrics."""

from __future__ import annotations

import pytest
import torch
from support.ranks import make_rank

from pytest_distbench.errors import RecordingError
from pytest_distbench.workloads.memory import record_peak_memory, reset_peak_memory


def test_on_a_cpu_it_is_the_resident_size() -> None:
    rank = make_rank()
    reset_peak_memory(rank)
    record_peak_memory(rank)

    (found,) = rank.notebook.observations
    assert (found.name, found.at, found.unit, found.better) == ("memory", {"of": "resident"}, "B", "lower")
    assert 2**24 < found.values[0] < 2**40


def test_on_a_gpu_it_is_the_allocators_and_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = make_rank()
    rank.device = torch.device("cuda", 0)
    forgotten: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", forgotten.append)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 10)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 20)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (70, 100))
    reset_peak_memory(rank)
    record_peak_memory(rank)

    assert forgotten == [rank.device]
    assert {o.at["of"]: o.values for o in rank.notebook.observations} == {
        "allocated": [10.0],
        "reserved": [20.0],
        "device": [30.0],
    }


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
