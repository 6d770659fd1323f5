"""The bucket sweep: the same bytes in few tensors and in many."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.launching import Launch
from support.releases import RECORDS

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.launch.starters.contract import Launcher
from pytest_distbench.workloads import buckets
from pytest_distbench.workloads.buckets import CALLS, elements_of, tensor_lengths


@pytest.mark.parametrize(
    ("elements", "tensors", "aligned", "lengths"),
    [
        (10, 3, 1, [4, 3, 3]),
        (10, 1, 4, [10]),
        (40, 3, 4, [16, 12, 12]),
        (42, 3, 4, [16, 12, 14]),
        (10, 4, 4, [3, 3, 2, 2]),
        (5, 5, 4, [1, 1, 1, 1, 1]),
    ],
)
def test_tensors_are_as_equal_as_they_can_be_and_aligned_where_they_can(
    elements: int, tensors: int, aligned: int, lengths: list[int]
) -> None:
    assert tensor_lengths(elements, tensors, aligned=aligned) == lengths


def test_there_are_no_more_tensors_than_elements() -> None:
    with pytest.raises(ConfigurationError, match="214 tensors of 100 elements: there can be 100 at most"):
        tensor_lengths(100, 214)


@pytest.mark.parametrize("message_bytes", [0, 10])
def test_a_message_is_a_whole_number_of_elements(message_bytes: int) -> None:
    with pytest.raises(ConfigurationError, match=f"{message_bytes} B are no whole number of float32 elements"):
        elements_of(message_bytes, "float32")


@pytest.mark.spawn
@pytest.mark.parametrize("launcher", ["warm"], indirect=True)
def test_each_way_sends_the_same_bytes_by_as_many_calls_as_it_says(launcher: Launcher, tmp_path: Path) -> None:
    launch = Launch(launcher, tmp_path, Path(buckets.__file__))
    params = {
        "message_bytes": 4000, "dtype": "float32", "tensors": [1, 7], "calls": list(CALLS), "iterations": 2,
        "warmup": 1,
    }  # fmt: skip
    record = launch("bucket_sweep", params=params)

    assert (record.outcome, record.reason) == ("passed", "")
    assert [m.key for m in record.measurements if m.name == "latency"] == [
        f"latency[calls={calls},tensors={tensors}]" for tensors in (1, 7) for calls in CALLS
    ]
    if RECORDS:
        sent = {calls: record.fingerprints[f"latency[calls={calls},tensors=7]"].collectives["all"] for calls in CALLS}
        assert {calls: sum(row.count for row in rows) for calls, rows in sent.items()} == {
            "each": 7,
            "coalesced": 1,
            "flattened": 1,
        }
        assert {sum(row.count * row.message_bytes for row in rows) for rows in sent.values()} == {4000}
