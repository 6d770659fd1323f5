"""What is made of a rank's flight recorder."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.documents import documents

from pytest_distbench.launch.diagnosis.flight import read_entered
from pytest_distbench.records.launch_files import LaunchFiles


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("flight")


def entry(number: int, **changes: object) -> dict[str, object]:
    """As torch 2.13 writes it, with a field that we do not read."""
    return {
        "record_id": number,
        "time_created_ns": number,
        "profiling_name": "gloo:all_reduce",
        "collective_seq_id": number,
        "process_group": ["0", "default_pg"],
        "input_dtypes": ["Float"],
        "input_sizes": [[8]],
        "retired": False,
        "state": "scheduled",
        **changes,
    }


def test_the_last_collective_is_told_with_its_number_type_and_size(tmp_path: Path) -> None:
    files = LaunchFiles(tmp_path)
    files.flight(0).write_bytes(msgspec.json.encode({"": {"entries": [entry(2), entry(1, retired=True)]}}))
    files.groups(0).write_text('{"0": [0, 1]}')
    found = read_entered(files, 0)

    assert found is not None
    assert (found.number, found.what, found.is_over) == (2, "all_reduce of float32[8]", False)
    assert (found.numbers, found.members) == ({"0": 2}, {"0": [0, 1]})


@pytest.mark.parametrize(
    ("group", "told"), [(["1", "undefined"], "in group 1"), (["1"], "in group 1"), (["1", "pair"], "in group pair")]
)
def test_another_group_than_the_default_one_is_named(tmp_path: Path, group: list[str], told: str) -> None:
    files = LaunchFiles(tmp_path)
    files.flight(0).write_bytes(msgspec.json.encode({"": {"entries": [entry(1, process_group=group)]}}))
    found = read_entered(files, 0)

    assert found is not None
    assert found.what == f"all_reduce of float32[8] {told}"


def test_point_to_point_is_no_collective(tmp_path: Path) -> None:
    files = LaunchFiles(tmp_path)
    files.flight(0).write_bytes(msgspec.json.encode({"": {"entries": [entry(1, is_p2p=True)]}}))
    found = read_entered(files, 0)

    assert found is not None
    assert (found.number, found.what, found.is_over) == (0, "none", True)


def of_nccl(number: int, **changes: object) -> dict[str, object]:
    """As torch writes it of NCCL, which has a recorder of its own."""
    return entry(number, profiling_name="nccl:all_reduce", **changes)


def test_of_two_recorders_both_are_read(tmp_path: Path) -> None:
    """Under NCCL the generic one holds our own barriers, on gloo: it alone would say that the rank came to all."""
    files = LaunchFiles(tmp_path)
    barrier = entry(9, profiling_name="gloo:barrier", process_group=["1", "undefined"], retired=True)
    files.flight(0).write_bytes(
        msgspec.json.encode({"": {"entries": [barrier]}, "nccl": {"entries": [of_nccl(2, state="started")]}})
    )
    files.groups(0).write_text('{"0": [0, 1], "1": [0, 1]}')
    found = read_entered(files, 0)

    assert found is not None
    assert (found.number, found.what, found.is_over) == (2, "all_reduce of float32[8]", False)
    assert (found.numbers, found.unfinished) == ({"1": 9, "nccl 0": 2}, {"nccl 0": 2})
    assert found.members["nccl 0"] == [0, 1]


def test_a_rank_waits_in_the_first_that_its_gpu_has_not_done(tmp_path: Path) -> None:
    """The host runs ahead: number 5 is enqueued while number 3 waits for another rank."""
    files = LaunchFiles(tmp_path)
    entries = [of_nccl(1, retired=True), of_nccl(2, state="completed"), *map(of_nccl, (3, 4, 5))]
    files.flight(0).write_bytes(msgspec.json.encode({"nccl": {"entries": entries}}))
    found = read_entered(files, 0)

    assert found is not None
    assert (found.number, found.numbers, found.unfinished) == (3, {"nccl 0": 5}, {"nccl 0": 3})
    assert not found.is_idle


@pytest.mark.parametrize(
    ("recordings", "idle"),
    [
        ({"nccl": {"entries": [of_nccl(1, state="completed")]}}, True),
        ({"nccl": {"entries": [of_nccl(1, retired=True), of_nccl(1, is_p2p=True)]}}, False),
        ({"nccl": {}}, False),
        ({"": {"entries": [entry(1, retired=True)]}}, False),
    ],
    ids=["all done", "a receive is not", "nothing recorded", "another backend's"],
)
def test_a_rank_is_idle_only_if_nccls_recorder_says_so(
    tmp_path: Path, recordings: dict[str, object], *, idle: bool
) -> None:
    files = LaunchFiles(tmp_path)
    files.flight(0).write_bytes(msgspec.json.encode(recordings))
    found = read_entered(files, 0)

    assert found is not None
    assert found.is_idle == idle


def test_a_rank_that_wrote_nothing_says_nothing(tmp_path: Path) -> None:
    assert read_entered(LaunchFiles(tmp_path), 0) is None


@given(st.one_of(st.binary(max_size=200), documents.map(msgspec.json.encode)))
def test_a_damaged_recorder_says_nothing(folder: Path, data: bytes) -> None:
    files = LaunchFiles(folder)
    files.flight(0).write_bytes(data)
    files.groups(0).write_bytes(data)
    found = read_entered(files, 0)

    assert found is None or found.number >= 0
