"""distbench baseline import of what nccl-tests and rccl-tests left: whose numbers they become, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.stores import PLATFORM, TEST, Run

from pytest_distbench.store.baselines import BaselineStore

DATA = Path(__file__).parents[1] / "data"
WHOSE = ("--test", f"{TEST}[float32-ws8]", "--platform", PLATFORM)
KEY = "float32-ws8.nccl.warm"


def data(name: str) -> str:
    return str(DATA / name)


def test_numbers_become_bounds_with_a_margin(run: Run, store: BaselineStore) -> None:
    code, text = run("import", data("nccl-tests-2020.txt"), "--as", "bounds", "--margin", "10%", *WHOSE)

    assert (code, text.splitlines()) == (
        0,
        [
            "1 run: 8 ranks, Tesla V100-SXM2-32GB, float, sum, in-place",
            f"new  {PLATFORM}  {TEST}[{KEY}]: 4 bounds",
        ],
    )
    entry = store.entry(TEST, KEY)
    assert entry is not None
    assert (entry.conditions.world_size, entry.workload, entry.metrics) == (8, "", {})
    assert entry.bounds["latency[message_bytes=67108864]"] == "<= 442.1 us"


def test_bandwidths_can_be_bounded(run: Run, store: BaselineStore) -> None:
    sizes = ("--min-size", "64KiB", "--max-size", "1MiB")
    text = run("import", data("rccl-tests.json"), "--as", "bounds", "--metric", "busbw", *sizes, *WHOSE)[1]

    assert "2 bounds" in text
    entry = store.entry(TEST, KEY)
    assert entry is not None
    assert entry.bounds == {
        "busbw[message_bytes=65536]": ">= 5.7 GB/s",
        "busbw[message_bytes=1048576]": ">= 24.01 GB/s",
    }


def test_several_runs_become_a_baseline(run: Run, store: BaselineStore) -> None:
    files = (data("nccl-tests.json"), data("rccl-tests-mpirun.txt"), data("rccl-tests.json"))
    text = run("import", *files, "--as", "baseline", *WHOSE)[1]

    assert "these tools time calls in a loop" in text
    assert "1 size left out: printed as 0, or not in every run" in text
    entry = store.entry(TEST, KEY)
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
def test_what_does_not_fit_is_refused(run: Run, store: BaselineStore, arguments: tuple[str, ...], message: str) -> None:
    code, text = run("import", *(data(a) if a.endswith(".txt") else a for a in arguments))

    assert (code, message in text) == (2, True), text
    assert store.entry(TEST, KEY) is None


def test_a_file_that_does_not_say_its_ranks_is_asked_about(run: Run, tmp_path: Path) -> None:
    lines = Path(data("nccl-tests-2020.txt")).read_text().splitlines()
    (tmp_path / "bare.txt").write_text("\n".join(line for line in lines if " Rank " not in line))
    command = ("import", str(tmp_path / "bare.txt"), "--as", "bounds", *WHOSE)

    assert "give --world-size N" in run(*command)[1]
    assert run(*command, "--world-size", "8")[0] == 0
    assert "is stored with 8 ranks; these numbers are of 4" in run(*command, "--world-size", "4")[1]


def test_what_is_there_stays_unless_it_is_to_be_replaced(run: Run, store: BaselineStore) -> None:
    run("import", data("nccl-tests-2020.txt"), "--as", "bounds", *WHOSE)
    again = ("import", data("nccl-tests-2020.txt"), "--as", "bounds", "--margin", "0.5", *WHOSE)
    kept, replaced = run(*again)[1], run(*again, "--existing", "replace")[1]

    assert kept.splitlines()[-1].startswith("kept  ")
    assert "0 bounds, 4 there already were kept (--existing replace)" in kept
    assert replaced.splitlines()[-1] == f"changed  {PLATFORM}  {TEST}[{KEY}]: 4 bounds"


def test_a_run_without_its_end_is_remarked(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cut.txt").write_text(Path(data("nccl-tests-2020.txt")).read_text().partition("# Out of")[0])

    assert "? a run has no summary at its end" in run("import", str(tmp_path / "cut.txt"), "--as", "bounds", *WHOSE)[1]
