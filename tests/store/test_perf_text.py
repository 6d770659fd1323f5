"""What nccl-tests and rccl-tests print, of several releases: files written by hand after their formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_distbench.errors import StoredFileError
from pytest_distbench.records.perf_output import PerfOutput
from pytest_distbench.store.perf_text import looks_like_text, read_perf_text

DATA = Path(__file__).parents[1] / "data"
FILE = Path("run.txt")


def read(text: str) -> list[PerfOutput]:
    return read_perf_text(text, FILE)


def text_of(name: str) -> str:
    return (DATA / name).read_text()


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


def test_several_runs_in_one_file_are_told_apart() -> None:
    for name in ("nccl-tests-2022.txt", "nccl-tests-2026.txt"):
        assert len(read(text_of(name) * 3)) == 3


def test_a_replayed_trace_has_one_side() -> None:
    text = text_of("nccl-tests-2022.txt")
    blank = text.replace("12.06    0.00    0.00    N/A", " " * 30)
    [found] = read(blank)

    assert [row.in_place for row in found.rows if row.size == 8] == [True, True]


def test_a_run_that_was_cut_off_is_known() -> None:
    assert not read(text_of("nccl-tests-2022.txt").partition("# Out of")[0])[0].is_whole


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


def test_a_run_without_results_is_an_error() -> None:
    with pytest.raises(StoredFileError, match="holds no line of results: the run failed"):
        read("\n".join(text_of("nccl-tests-2022.txt").splitlines()[:12]))


def test_other_text_is_not_mistaken() -> None:
    assert not looks_like_text("# size count\n1 2 3\n")
