"""Numbers of nccl-tests and rccl-tests: what they print, of several releases, and whose numbers they become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from support.documents import documents
from support.stores import PLATFORM, TEST, Run

from pytest_distbench.errors import ConfigurationError, StoredFileError
from pytest_distbench.records.metric import terms_of
from pytest_distbench.store.baselines import Baselines
from pytest_distbench.tools import transfer
from pytest_distbench.tools.transfer import (
    PerfOutput,
    PerfRow,
    baselines_of,
    bounds_of,
    choose_rows,
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
    text = r"of no format that can be imported\. Known are the output of nccl-tests and rccl"
    with pytest.raises(StoredFileError, match=text):
        read_perf_output(tmp_path / "run")


def test_an_output_that_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (tmp_path, tmp_path / "none"):
        with pytest.raises(StoredFileError, match="Known are"):
            read_perf_output(place)
    monkeypatch.setattr(transfer, "MAX_OUTPUT_BYTES", 10)
    with pytest.raises(StoredFileError, match="larger than"):
        read_perf_output(DATA / "nccl-tests.json")


def read(text: str) -> list[PerfOutput]:
    return [*read_perf_text(text, Path("run.txt"))]


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
def test_what_is_damaged_is_named_with_its_line(name: str, old: str, new: str, message: str) -> None:
    assert old in text_of(name)
    with pytest.raises(StoredFileError, match=message):
        (read_json if name.endswith(".json") else read)(text_of(name).replace(old, new))


def read_json(text: str) -> PerfOutput:
    return read_perf_json(text, Path("run.json"))


@given(documents)
def test_any_other_document_is_refused(document: object) -> None:
    import msgspec

    with pytest.raises(StoredFileError):
        read_json(msgspec.json.encode({"results": document, "config": document}).decode())
    with pytest.raises(StoredFileError):
        read_json(msgspec.json.encode(document).decode())


def row(size: int = 4096, time_s: float = 2e-4, **changes: Any) -> PerfRow:
    made = {"dtype": "float", "redop": "sum", "root": "-1", "in_place": True, "busbw": 100.0}
    return PerfRow(size=size, time_s=time_s, **(made | changes))


def output(*rows: PerfRow) -> PerfOutput:
    return PerfOutput(program="all_reduce_perf", ranks=8, device="", rows=[*rows], is_whole=True)


def test_bounds_are_made_of_rows_of_one_kind_with_a_margin() -> None:
    run = output(row(8), row(4096), row(8192), row(in_place=False), row(dtype="half"), row(redop="max"))
    assert [r.size for r in choose_rows(run, in_place=True, dtype="float32", redop="sum", least=9, most=4096)] == [4096]

    runs = [[row(time_s=time)] for time in (1e-4, 2e-4, 9e-4)]
    assert bounds_of(runs, metric="latency", margin=0.1) == {"latency[message_bytes=4096]": "<= 220 us"}
    assert bounds_of(runs, metric="busbw", margin=0.1) == {"busbw[message_bytes=4096]": ">= 90 GB/s"}

    assert bounds_of([[row(8, busbw=0.0), row()]], metric="busbw", margin=0.0).keys() == {"busbw[message_bytes=4096]"}
    assert bounds_of([[row(8, time_s=0.0)]], metric="latency", margin=0.0) == {}
    assert baselines_of([[row(8, time_s=0.0)], [row(8)]], in_place=True) == {}

    for time in (1e-9, 3.3e-7, 0.123456, 7.0):
        for value in bounds_of([[row(time_s=time)]], metric="latency", margin=0.07).values():
            assert terms_of(value)[0][0] == "most"

    runs = [[row(time_s=1.23456e-4), row(8)], [row(time_s=1e-4), row(time_s=3e-4)]]
    found = baselines_of(runs, in_place=True)
    assert found.keys() == {"latency[message_bytes=4096]"}
    [metric] = found.values()
    assert ([m.value for m in metric], metric[0].identity) == ([1.235e-4, 2e-4], {"in_place": True, "redop": "sum"})


@pytest.mark.parametrize(
    ("rows", "chosen", "message"),
    [
        ([row(), row(dtype="half")], {}, "the rows are of float, half: give --dtype"),
        ([row(), row(redop="max")], {}, "the rows are of max, sum: give --redop"),
        ([row(), row(root="3")], {}, "the rows are of root -1, root 3: give a file of one"),
        ([row()], {"dtype": "half"}, "no row is in place and as asked for; there are float sum of 4096 to 4096 B"),
    ],
)
def test_rows_of_several_kinds_or_none_are_an_error(rows: list[PerfRow], chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        choose_rows(output(*rows), in_place=True, **chosen)


WHOSE = ("--test", f"{TEST}[float32-ws8]", "--platform", PLATFORM)
KEY = "float32-ws8.nccl.warm"


def test_numbers_become_bounds_with_a_margin(run: Run, store: Baselines) -> None:
    code, text = run("import", str(DATA / "nccl-tests-2020.txt"), "--as", "bounds", "--margin", "10%", *WHOSE)

    assert (code, text.splitlines()) == (
        0,
        ["1 run: 8 ranks, Tesla V100-SXM2-32GB, float, sum, in-place", f"new  {PLATFORM}  {TEST}[{KEY}]: 4 bounds"],
    )
    entry = store.read(TEST, KEY)
    assert entry is not None
    assert (entry.conditions.world_size, entry.workload, entry.metrics) == (8, "", {})
    assert entry.bounds["latency[message_bytes=67108864]"] == "<= 442.1 us"


def test_bandwidths_can_be_bounded(run: Run, store: Baselines) -> None:
    sizes = ("--min-size", "64KiB", "--max-size", "1MiB")
    text = run("import", str(DATA / "rccl-tests.json"), "--as", "bounds", "--metric", "busbw", *sizes, *WHOSE)[1]

    assert "2 bounds" in text
    entry = store.read(TEST, KEY)
    assert entry is not None
    found = {"busbw[message_bytes=65536]": ">= 5.7 GB/s", "busbw[message_bytes=1048576]": ">= 24.01 GB/s"}
    assert entry.bounds == found


def test_several_runs_become_a_baseline(run: Run, store: Baselines) -> None:
    files = (str(DATA / "nccl-tests.json"), str(DATA / "rccl-tests-mpirun.txt"), str(DATA / "rccl-tests.json"))
    text = run("import", *files, "--as", "baseline", *WHOSE)[1]

    assert "these tools time calls in a loop" in text
    assert "1 size left out: printed as 0, or not in every run" in text
    entry = store.read(TEST, KEY)
    assert entry is not None
    assert [m.value for m in entry.metrics["latency[message_bytes=65536]"]] == [2.012e-05] * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nccl-tests-2020.txt", "--as", "bounds"), "give --test and --platform; 'distbench baseline list' shows both"),
        (("nccl-tests-2020.txt", "--as", "bounds", "--test", "x", "--platform", "p"), "--test 'x': wanted a node id"),
        (("nccl-tests-2020.txt", "--as", "baseline", *WHOSE), "the noise of one run is unknown"),
        (("nccl-tests-2020.txt", "--as", "bounds", "--world-size", "4", *WHOSE), "the numbers are of 8 ranks"),
        (("nccl-tests-2020.txt", "--as", "bounds", "--margin", "2", *WHOSE), "--margin '2': wanted a fraction"),
        (("nccl-tests-2020.txt", "--as", "bounds", "--margin", "2us", *WHOSE), "--margin '2us': wanted a fraction"),
        (("nccl-tests-2022.txt", "--as", "bounds", *WHOSE), "the rows are of float, half: give --dtype"),
        (("nccl-tests-2020.txt", "nccl-tests-2026.txt", "--as", "bounds", *WHOSE), "several numbers of ranks, 4, 8"),
        (("nccl-tests-2020.txt",), "with --as bounds or --as baseline the output of nccl-tests or rccl-tests"),
    ],
)
def test_what_does_not_fit_is_refused(run: Run, store: Baselines, arguments: tuple[str, ...], message: str) -> None:
    code, text = run("import", *(str(DATA / a) if a.endswith(".txt") else a for a in arguments))

    assert (code, message in text) == (2, True), text
    assert store.read(TEST, KEY) is None


def test_a_file_that_does_not_say_its_ranks_is_asked_about(run: Run, tmp_path: Path) -> None:
    lines = text_of("nccl-tests-2020.txt").splitlines()
    (tmp_path / "bare.txt").write_text("\n".join(line for line in lines if " Rank " not in line))
    command = ("import", str(tmp_path / "bare.txt"), "--as", "bounds", *WHOSE)

    assert "give --world-size N" in run(*command)[1]
    assert run(*command, "--world-size", "8")[0] == 0
    assert "is stored with 8 ranks; these numbers are of 4" in run(*command, "--world-size", "4")[1]


def test_what_is_there_stays_unless_it_is_to_be_replaced(run: Run, store: Baselines) -> None:
    run("import", str(DATA / "nccl-tests-2020.txt"), "--as", "bounds", *WHOSE)
    again = ("import", str(DATA / "nccl-tests-2020.txt"), "--as", "bounds", "--margin", "0.5", *WHOSE)
    kept, replaced = run(*again)[1], run(*again, "--existing", "replace")[1]

    assert kept.splitlines()[-1].startswith("kept  ")
    assert "0 bounds, 4 there already were kept (--existing replace)" in kept
    assert replaced.splitlines()[-1] == f"changed  {PLATFORM}  {TEST}[{KEY}]: 4 bounds"


def test_a_run_without_its_end_is_remarked(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cut.txt").write_text(text_of("nccl-tests-2020.txt").partition("# Out of")[0])

    assert "? a run has no summary at its end" in run("import", str(tmp_path / "cut.txt"), "--as", "bounds", *WHOSE)[1]
