"""The lines before the first test: what is measured on what, against which baselines, and how long it will take."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.results import result
from support.stores import KEY, TEST, entry

from pytest_distbench.machine.gpus import Gpus
from pytest_distbench.plugin.progress import duration_text, expected_s, header_lines
from pytest_distbench.records.environment import Gpu
from pytest_distbench.records.record import replace
from pytest_distbench.store.baselines import Baselines


def lines(folder: Path, *, shares_host: bool = False, against: str = "", **changes: Any) -> list[str]:
    given = {"world_sizes": (2, 4), "gpus": Gpus(), "backends": ("gloo",), "launcher": "warm", "update": None}
    given |= {"update_launches": 3, "max_launches": 10, "control": None}
    environment = replace(result().environment, shares_host=shares_host)
    settings = SimpleNamespace(**(given | changes))
    return header_lines(
        environment, Baselines(folder, "cpu-x"), settings, against=against, duration="", record="pytest --update"
    )


def test_the_header_names_gpus_updates_and_revisions(tmp_path: Path) -> None:
    Baselines(tmp_path, "cpu-x").write(TEST, KEY, entry(1.0))
    first, second = lines(tmp_path)
    assert first.endswith(": world size 2, 4, gloo, ranks forked with torch loaded, 2 CPU cores (X), torch 2.14.0")
    assert second == f"distbench: baselines {tmp_path}/cpu-x (1 case)"

    gpus = Gpus(visible=tuple(Gpu(name="NVIDIA H200", uuid=f"GPU-{i}") for i in range(8)))
    assert "nccl, ranks forked with torch loaded, 8 GPUs (X)" in lines(tmp_path, gpus=gpus, backends=("nccl",))[0]

    gpus = Gpus(visible=(Gpu(name="NVIDIA H200", uuid="GPU-1"),), unreadable=("GPU 0: lost",))
    first, second, *_ = lines(tmp_path, gpus=gpus, backends=("nccl",))
    assert "nccl, ranks forked with torch loaded, 1 GPU (X)" in first
    assert second == "distbench: not used: GPU 0: lost"

    assert lines(tmp_path, update="new")[-1] == "distbench: recording baselines (update=new): 3 launches a case"

    text = "distbench: interleaved A/B against main; stored baselines are not used"
    assert lines(tmp_path, against="main")[1:] == [text]


def test_where_nothing_is_stored_one_line_says_how_a_second_run_compares(tmp_path: Path) -> None:
    empty = f"distbench: no baselines for this platform yet ({tmp_path}/cpu-x)"

    assert lines(tmp_path)[1:] == [f"{empty}; a second run compares once they are recorded:  pytest --update"]
    assert lines(tmp_path, update="new")[1] == empty


@pytest.mark.parametrize("against", ["", "main"])
def test_the_header_says_that_timings_on_a_shared_host_have_others_load(tmp_path: Path, against: str) -> None:
    assert "(--distbench-share=host): CPU clocks" in lines(tmp_path, shares_host=True, against=against)[1]
    assert not any("share=host" in line for line in lines(tmp_path, against=against))


@pytest.mark.parametrize(
    ("tests", "slow", "text"),
    [
        ([100.0, 70.0], [], "2 tests, about 2.9 min"),
        ([0.2], [], "1 test, about 4 s"),
        ([9.0], [None, 9.0], "1 test, about 13 s; 2 slow tests deselected (--distbench-full runs them)"),
        ([400.0], [], "1 test, about 7 min"),
        ([56.0, None], [], "2 tests, about 60 s for 1 of them, which have baselines"),
        ([None], [], "1 test; how long they take is known once they have baselines"),
        ([], [9.0], "1 slow test deselected (--distbench-full runs them in about 13 s)"),
    ],
)
def test_a_run_says_how_long_it_takes_and_of_what(
    tests: list[float | None], slow: list[float | None], text: str
) -> None:
    assert duration_text(tests, slow=slow) == text


def test_the_duration_includes_what_confirmation_may_add() -> None:
    assert duration_text([16.0], confirm_s=60.0) == "1 test, about 20 s, and up to 60 s to confirm suspicious timings"
    assert duration_text([None], confirm_s=60.0) == "1 test; how long they take is known once they have baselines"


def test_the_cases_of_a_baseline_are_added_and_multiplied_by_the_launches() -> None:
    entries = [entry(1.0, 1.0, 1.0, launch_s=3.0), entry(1.0, launch_s=2.0)]

    assert expected_s(entries, 1) == 5.0
    assert expected_s(entries, 10) == 50.0
    assert expected_s(entries, None) == 11.0, "as many as are stored"
    assert expected_s([*entries, entry(1.0)], 1) is None
    assert expected_s([], 1) is None
