"""A sweep does whatever it does through the operation: other buffers out than in, a message in parts, none at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.launching import Launch
from support.releases import RECORDS

from pytest_distbench.launch.contract import Launcher

pytestmark = [
    pytest.mark.spawn,
    pytest.mark.parametrize("launcher", ["warm"], indirect=True),  # what an operation does is the same under any
]

ROWS = """
import torch.distributed as dist

from pytest_distbench.workloads.collectives import Counts, Operation

def _call(buffers):
    pass


ALL_GATHER = Operation(
    name="all_gather",
    busbw_factor=lambda n: (n - 1) / n,
    source="nccl-tests src/all_gather.cu",
    call=lambda buffers: dist.all_gather_into_tensor(buffers.received, buffers.sent),
    expected=lambda inputs: inputs.of_all(),
    counts=lambda elements, n: Counts(elements // n, elements),
    granularity=lambda n: n,
    is_in_place=False,
)
BARRIER = Operation(
    name="barrier",
    busbw_factor=lambda n: 0,
    source="nothing is sent",
    call=lambda buffers: dist.barrier(),
    expected=None,
    granularity=lambda n: 0,
)
REDUCE = Operation(
    name="reduce",
    busbw_factor=lambda n: 1,
    source="nccl-tests src/reduce.cu",
    call=lambda buffers: dist.reduce(buffers.sent, dst=1),
    expected=lambda inputs: inputs.combine(lambda rows: rows.sum(0)) if inputs.rank == 1 else None,
    options={"redop": "sum", "root": 1},
)
IDLE = Operation(
    name="idle",
    busbw_factor=lambda n: 1,
    source="",
    call=lambda buffers: None,
    expected=lambda inputs: inputs.of(0),
    is_in_place=False,
)
UNEVEN = Operation(
    name="uneven",
    busbw_factor=lambda n: 1,
    source="",
    call=lambda buffers: None,
    expected=lambda inputs: inputs.of(0)[1:],
)
"""


@pytest.fixture
def launch(launcher: Launcher, tmp_path: Path) -> Launch:
    file = tmp_path / "rows.py"
    file.write_text(ROWS)
    return Launch(launcher, tmp_path, file)


def params(*sizes: int) -> dict[str, object]:
    return {"collective": "", "dtype": "float32", "sizes": sizes, "iterations": 3, "warmup": 1, "cache": "rotate"}


def test_an_operation_whose_output_is_another_buffer_is_measured_and_checked(launch: Launch) -> None:
    record = launch("ALL_GATHER.sweep", params=params(4, 24, 4096))

    assert (record.outcome, record.reason) == ("passed", "")
    wrong = {m.at["message_bytes"]: m.value for m in record.measurements if m.name == "wrong_elements"}
    assert wrong == {24: 0, 4096: 0}
    assert all(m.identity["in_place"] is False for m in record.measurements if m.name == "latency")
    if RECORDS:
        fingerprint = record.fingerprints["latency[message_bytes=4096]"]
        assert [row.message_bytes for row in fingerprint.collectives["all"]] == [2048]


def test_an_operation_that_sends_nothing_is_measured_once(launch: Launch) -> None:
    record = launch("BARRIER.sweep", params=params(4, 24))

    assert [m.key for m in record.measurements] == ["latency[message_bytes=0]"]


def test_a_result_is_checked_on_the_ranks_that_have_one(launch: Launch) -> None:
    record = launch("REDUCE.sweep", params=params(64))

    assert (record.outcome, record.reason) == ("passed", "")
    assert {m.name: m.value for m in record.measurements}["wrong_elements"] == 0


def test_an_operation_that_delivers_nothing_fails_with_an_element(launch: Launch) -> None:
    record = launch("IDLE.sweep", params=params(64))

    assert record.outcome == "failed"
    assert "idle float32 of 64 B: 32 wrong elements over all ranks; on rank" in record.reason
    assert "element 0 is 255, expected 0" in record.reason


def test_a_row_that_contradicts_itself_is_told(launch: Launch) -> None:
    record = launch("UNEVEN.sweep", params=params(64))

    assert "uneven: expected(...) has 15 elements, what a rank receives 16" in record.reason


def test_what_is_no_operation_is_told(launch: Launch) -> None:
    record = launch("_call.sweep", params=params(64))

    assert "has no '_call.sweep': 'sweep' is no part of a function" in record.reason
