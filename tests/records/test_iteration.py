"""What torch calls a collective in its operators, its flight recorder and its watchdog is one name here."""

from __future__ import annotations

import pytest

from pytest_distbench.records.iteration import operation


@pytest.mark.parametrize(
    ("name", "called"),
    [
        ("allreduce_", "all_reduce"),
        ("ALLREDUCE", "all_reduce"),
        ("all_reduce", "all_reduce"),
        ("_allgather_base_", "all_gather_into_tensor"),
        ("_all_gather_base", "all_gather_into_tensor"),
        ("_REDUCE_SCATTER_BASE", "reduce_scatter_tensor"),
        ("reduce_scatter_tensor_coalesced_", "reduce_scatter_tensor_coalesced"),
        ("ALLTOALL_BASE", "all_to_all_single"),
        ("recv_any_source_", "recv"),
        ("monitored_barrier", "monitored_barrier"),
        ("BROADCAST", "broadcast"),
    ],
)
def test_a_collective_has_one_name(name: str, called: str) -> None:
    assert operation(name) == called
