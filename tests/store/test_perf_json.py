"""The JSON that nccl-tests and rccl-tests write."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from support.documents import documents

from pytest_distbench.errors import StoredFileError
from pytest_distbench.records.perf_output import PerfOutput
from pytest_distbench.store.perf_json import read_perf_json

DATA = Path(__file__).parents[1] / "data"


def read(text: str) -> PerfOutput:
    return read_perf_json(text, Path("run.json"))


def text_of(name: str) -> str:
    return (DATA / name).read_text()


def test_nccl_tests_has_a_device_per_process_and_may_lack_a_side() -> None:
    found = read(text_of("nccl-tests.json"))

    assert (found.program, found.ranks, found.device) == ("all_reduce_perf", 8, "NVIDIA H100 80GB HBM3")
    assert [(row.size, row.in_place) for row in found.rows[:3]] == [(8, True), (65536, False), (65536, True)]
    assert (found.rows[-1].root, found.rows[-1].time_s) == ("-1", pytest.approx(401.9e-6))
    assert found.is_whole


def test_rccl_tests_has_a_list() -> None:
    found = read(text_of("rccl-tests.json"))

    assert (found.program, found.ranks, len(found.rows)) == ("AllReduce", 8, 8)
    assert found.rows[-1].busbw == pytest.approx(292.213267)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("nccl-tests.json", '"time":402.7', '"time":"nan"', r"run\.json: results\[3\]: damaged: 'nan' is no number"),
        ("nccl-tests.json", '"time":402.7', '"tme":402.7', r"run\.json: results\[3\]: damaged: no 'time'"),
        ("nccl-tests.json", '"time":402.7', '"cpu_time":402.7', r"results\[3\]: holds the CPU's time of each call"),
        ("nccl-tests.json", '"nwrong":0.0', '"nwrong":5.0', r"run\.json: results\[1\]: 5 wrong values"),
        ("nccl-tests.json", '"out_of_bounds"', "", r"run\.json:1: no JSON: "),
        ("rccl-tests.json", '"size":65536', '"size":-1', r"run\.json: \[2\]: damaged: -1 is no number"),
        ("rccl-tests.json", '"wrong":"0"', '"wrong":"9"', r"run\.json: \[2\]: 9 wrong values"),
        ("rccl-tests.json", "]", "", r"run\.json:\d+: no JSON: .*the run may have been cut off"),
    ],
)
def test_what_is_damaged_is_named(name: str, old: str, new: str, message: str) -> None:
    assert old in text_of(name)
    with pytest.raises(StoredFileError, match=message):
        read(text_of(name).replace(old, new))


@given(documents)
def test_any_other_document_is_refused(document: object) -> None:
    import msgspec

    with pytest.raises(StoredFileError):
        read(msgspec.json.encode({"results": document, "config": document}).decode())
    with pytest.raises(StoredFileError):
        read(msgspec.json.encode(document).decode())
