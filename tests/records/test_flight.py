"""How a collective of the flight recorder is named, in fingerprints and in the diagnosis of hangs alike."""

from __future__ import annotations

import pytest

from pytest_distbench.records.flight import FlightEntry


def entry(**fields: object) -> FlightEntry:
    return FlightEntry(record_id=0, time_created_ns=0, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("recorded", "told"),
    [
        (["0", "default_pg"], "default"),
        (["3", "undefined"], "group 3"),
        (["3", ""], "group 3"),
        (["3"], "group 3"),
        (["3", "mesh_tp"], "mesh_tp"),
    ],
)
def test_a_group_is_the_default_one_or_known_by_description_or_by_name(recorded: list[str], told: str) -> None:
    assert entry(process_group=recorded).group == told


def test_types_have_their_torch_names() -> None:
    assert entry(input_dtypes=["BFloat16", "Long", "Float8_e4m3fn"]).dtypes == ["bfloat16", "int64", "float8_e4m3fn"]


@pytest.mark.parametrize(("recorded", "told"), [("nccl:all_reduce", "all_reduce"), ("", "collective")])
def test_an_operation_has_its_torch_name(recorded: str, told: str) -> None:
    assert entry(profiling_name=recorded).op == told
