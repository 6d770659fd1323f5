"""What nccl-tests and rccl-tests print, of several releases, and their JSON: files written after their formats."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from support.documents import documents

from pytest_distbench.errors import StoredFileError
from pytest_distbench.tools import transfer
from pytest_distbench.tools.transfer import (
    PerfOutput,
    looks_like_text,
    read_perf_json,
    read_perf_output,
    read_perf_text,
)

DATA = Path(__file__).parents[1] / "data"


def text_of(name: str) -> str:
    return (DATA / name).read_text()


@pytest.mark.parametrize("path", sorted(DATA.glob("*.*")), ids=lambda path: path.name)
def test_every_file_is_recognised_by_what_is_in_it(path: Path) -> None:
    assert read_perf_output(path)[0].rows


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"numCycle,collective,ranks\n0,AllReduce,8\n", b"step: 3 ms\n"])
def test_an_unknown_format_says_what_is_known(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run").write_bytes(content)
    with pytest.raises(
        StoredFileError, match=r"of no format that can be imported\. Known are the output of nccl-tests and rccl"
    ):
        read_perf_output(tmp_path / "run")


def test_what_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (tmp_path, tmp_path / "none"):
        with pytest.raises(StoredFileError, match="Known are"):
            read_perf_output(place)
    monkeypatch.setattr(transfer, "MAX_OUTPUT_BYTES", 10)
    with pytest.raises(StoredFileError, match="larger than"):
        read_perf_output(DATA / "nccl-tests.json")


def read(text: str) -> list[PerfOutput]:
    return read_perf_text(text, Path("run.txt"))


@pytest.mark.parametrize(
    ("name", "ranks", "device", "dtypes", "rows"),
    [
        ("nccl-tests-2020.txt", 8, "Tesla V100-SXM2-32GB", {"float"}, 8),
        ("nccl-tests-2022.txt", 8, "NVIDIA A100-SXM4-80GB", {"float", "half"}, 20),
        ("nccl-tests-2026.txt", 4, "NVIDIA H100 80GB HBM3", {"bfloat16"}, 8),  # two groups of four
        ("rccl-tests-mpirun.txt", 8, "AMD Instinct MI300X", {"float"}, 6),
        ("rccl-tests-in-place.txt", 8, "AMD Instinct MI355X", {"bfloat16"}, 3),
    ],
)
def test_each_release_is_read(name: str, ranks: int, device: str, dtypes: set[str], rows: int) -> None:
    assert looks_like_text(text_of(name))
    [found] = read(text_of(name))

    assert (found.ranks, found.device, found.is_whole, len(found.rows)) == (ranks, device, True, rows)
    assert {row.dtype for row in found.rows} == dtypes
    last = found.rows[-1]
    assert (last.size, last.redop, last.in_place) == (67108864, "sum", True)
    assert last.time_s == pytest.approx(401.9e-6)
    assert last.busbw == pytest.approx(250.47 if ranks == 4 else 292.21)


def test_files_without_results_or_sides_are_read_as_far_as_they_go() -> None:
    for name in ("nccl-tests-2022.txt", "nccl-tests-2026.txt"):
        assert len(read(text_of(name) * 3)) == 3

    text = text_of("nccl-tests-2022.txt")
    blank = text.replace("12.06    0.00    0.00    N/A", " " * 30)
    [found] = read(blank)
    assert [row.in_place for row in found.rows if row.size == 8] == [True, True]

    assert not read(text_of("nccl-tests-2022.txt").partition("# Out of")[0])[0].is_whole

    with pytest.raises(StoredFileError, match="holds no line of results: the run failed"):
        read("\n".join(text_of("nccl-tests-2022.txt").splitlines()[:12]))

    assert not looks_like_text("# size count\n1 2 3\n")

    found = read_json(text_of("nccl-tests.json"))
    assert (found.program, found.ranks, found.device) == ("all_reduce_perf", 8, "NVIDIA H100 80GB HBM3")
    assert [(row.size, row.in_place) for row in found.rows[:3]] == [(8, True), (65536, False), (65536, True)]
    assert (found.rows[-1].root, found.rows[-1].time_s) == ("-1", pytest.approx(401.9e-6))
    assert found.is_whole
    assert read_json(text_of("nccl-tests.json").replace('"nthreads":1', '"nthreads":2')).ranks == 16

    found = read_json(text_of("rccl-tests.json"))
    assert (found.program, found.ranks, len(found.rows)) == ("AllReduce", 8, 8)
    assert found.rows[-1].busbw == pytest.approx(292.213267)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("nccl-tests-2020.txt", "20.41", "20.4I", r"run\.txt:17: '65536 .*' is no line of numbers"),
        ("nccl-tests-2020.txt", "20.41", "-20.41", r"run\.txt:17: .* is no line of numbers"),
        ("nccl-tests-2020.txt", "20.41", "nan", r"run\.txt:17: .* is no line of numbers"),
        ("nccl-tests-2020.txt", "20.41    3.21", "20.41", r"run\.txt:17: .* has 11 columns, its table has 12"),
        ("nccl-tests-2020.txt", "  5e-07", " 5e-02*", r"run\.txt:16: 0\.05 wrong values"),
        ("nccl-tests-2020.txt", ": 0 OK", ": 3 FAILED", r"run\.txt:20: 3 wrong values"),
        ("nccl-tests-2022.txt", "292.21      0", "292.21     17", r"run\.txt:20: 17 wrong values"),
        ("nccl-tests-2022.txt", "       65536", "Segmentation fault", r"run\.txt:18: 'Segmentation fault .* columns"),
        ("nccl-tests-2022.txt", "    time ", " cputime ", r"run\.txt:14: holds the CPU's time of each call"),
        ("rccl-tests-in-place.txt", "in-place", "", r"run\.txt:\d+: has 1 time columns, and the line above names none"),
    ],
)
def test_a_damaged_line_is_named(name: str, old: str, new: str, message: str) -> None:
    assert old in text_of(name)
    with pytest.raises(StoredFileError, match=message):
        read(text_of(name).replace(old, new))


def read_json(text: str) -> PerfOutput:
    return read_perf_json(text, Path("run.json"))


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
def test_what_is_damaged_in_json_is_named(name: str, old: str, new: str, message: str) -> None:
    assert old in text_of(name)
    with pytest.raises(StoredFileError, match=message):
        read_json(text_of(name).replace(old, new))


@given(documents)
def test_any_other_document_is_refused(document: object) -> None:
    import msgspec

    with pytest.raises(StoredFileError):
        read_json(msgspec.json.encode({"results": document, "config": document}).decode())
    with pytest.raises(StoredFileError):
        read_json(msgspec.json.encode(document).decode())
