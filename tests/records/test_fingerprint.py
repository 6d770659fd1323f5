"""Which collectives a process called, by fingerprint and by torch's flight recorder."""

from __future__ import annotations

import msgspec
import pytest

from pytest_distbench.records.iteration import Fingerprint, FlightEntry, operation, rank_ranges


def entry(**fields: object) -> FlightEntry:
    return FlightEntry(record_id=0, time_created_ns=0, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("recorded", "text"),
    [
        (["0", "default_pg"], "default"),
        (["3", "undefined"], "group 3"),
        (["3", ""], "group 3"),
        (["3"], "group 3"),
        (["3", "mesh_tp"], "mesh_tp"),
        (["", ""], "unnamed group"),
    ],
)
def test_a_group_is_the_default_one_or_known_by_description_or_by_name(recorded: list[str], text: str) -> None:
    assert entry(process_group=recorded).group == text


@pytest.mark.parametrize(
    ("name", "called"),
    [
        ("allreduce_", "all_reduce"),
        ("ALLREDUCE", "all_reduce"),
        ("_all_gather_base", "all_gather_into_tensor"),
        ("_REDUCE_SCATTER_BASE", "reduce_scatter_tensor"),
        ("ALLTOALL_BASE", "all_to_all_single"),
        ("recv_any_source_", "recv"),
        ("monitored_barrier", "monitored_barrier"),
    ],
)
def test_a_collective_has_one_name_whatever_torch_calls_it(name: str, called: str) -> None:
    assert operation(name) == called


def test_dtypes_have_torchs_names_and_ranks_are_written_as_ranges() -> None:
    assert entry(input_dtypes=["BFloat16", "Long", "Float8_e4m3fn"]).dtypes == ["bfloat16", "int64", "float8_e4m3fn"]
    with pytest.raises(msgspec.ValidationError, match=r"\$\.collectives"):
        msgspec.json.decode(b'{"collectives": {"1-x": []}}', type=Fingerprint)
    assert [rank_ranges([0, 2, 3]), rank_ranges([0, 1], 2), rank_ranges([0, 1], 3)] == ["0,2-3", "all", "0-1"]


@pytest.mark.parametrize(("recorded", "text"), [("nccl:all_reduce", "all_reduce"), ("", "collective")])
def test_an_operation_has_its_torch_name(recorded: str, text: str) -> None:
    assert entry(profiling_name=recorded).op == text
