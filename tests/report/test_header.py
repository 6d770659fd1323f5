"""The lines before the first test: what is measured on what, against which baselines, and how long it will take."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.results import result
from support.stores import KEY, TEST, entry

from pytest_distbench.machine.gpus import Gpus
from pytest_distbench.plugin.progress import Awaited, awaited, duration_text, header_lines
from pytest_distbench.records.environment import Gpu
from pytest_distbench.records.record import replace
from pytest_distbench.store.baselines import BaselineStore


def lines(folder: Path, *, shares_host: bool = False, against: str = "", **changes: Any) -> list[str]:
    given = {"world_sizes": (2, 4), "gpus": Gpus(), "backends": ("gloo",), "launcher": "warm", "update": None}
    given |= {"update_launches": 3, "max_launches": 10, "control": None}
    environment = replace(result().environment, shares_host=shares_host)
    settings = SimpleNamespace(**(given | changes))
    return header_lines(
        environment, BaselineStore(folder, "cpu-x"), settings, against=against, duration="", record="pytest --update"
    )


def test_the_header_names_gpus_updates_and_revisions(tmp_path: Path) -> None:
    BaselineStore(tmp_path, "cpu-x").write(TEST, KEY, entry(1.0))
    first, second = lines(tmp_path)
    assert first.endswith(": world size 2, 4, gloo, 2 CPU cores (X), torch 2.14.0, warm launcher")
    assert second == f"distbench: baselines {tmp_path}/cpu-x (1 case)"

    gpus = Gpus(visible=tuple(Gpu(name="NVIDIA H200", uuid=f"GPU-{i}") for i in range(8)))
    assert "nccl, 8 GPUs (X)" in lines(tmp_path, gpus=gpus, backends=("nccl",))[0]

    gpus = Gpus(visible=(Gpu(name="NVIDIA H200", uuid="GPU-1"),), unreadable=("GPU 0: lost",))
    first, second, *_ = lines(tmp_path, gpus=gpus, backends=("nccl",))
    assert "nccl, 1 GPU (X)" in first
    assert second == "distbench: not used: GPU 0: lost"

    assert lines(tmp_path, update="new")[-1] == "distbench: update=new, 3 launches a case; baselines will be written"

    told = "distbench: interleaved A/B against main; stored baselines are not used"
    assert lines(tmp_path, against="main")[1:] == [told]


def test_where_nothing_is_stored_one_line_says_how_a_second_run_compares(tmp_path: Path) -> None:
    empty = f"distbench: no baselines for this platform yet ({tmp_path}/cpu-x)"

    assert lines(tmp_path)[1:] == [f"{empty}; a second run compares once they are recorded:  pytest --update"]
    assert lines(tmp_path, update="new")[1] == empty


@pytest.mark.parametrize("against", ["", "main"])
def test_clocks_on_a_shared_host_are_told_to_be_others_too(tmp_path: Path, against: str) -> None:
    assert "(--distbench-share=host): CPU clocks" in lines(tmp_path, shares_host=True, against=against)[1]
    assert not any("share=host" in line for line in lines(tmp_path, against=against))


@pytest.mark.parametrize(
    ("tests", "slow", "text"),
    [
        ([Awaited(100.0), Awaited(70.0)], [], "2 tests, about 2.8 min"),
        ([Awaited(0.2)], [], "1 test, about 1 s"),
        (
            [Awaited(9.0)],
            [Awaited(None), Awaited(9.0)],
            "1 test, about 9 s; 2 slow tests deselected (--distbench-full runs them)",
        ),
        ([Awaited(400.0)], [], "1 test, about 7 min"),
        (
            [Awaited(30.0, is_elsewhere=True), Awaited(None)],
            [],
            "2 tests, about 60 s, as on other machines; 1 of them never timed, and taken for as long as the others",
        ),
        ([Awaited(None)], [], "1 test; the first run shows how long that takes"),
        ([], [Awaited(9.0)], "1 slow test deselected (--distbench-full runs them in about 9 s)"),
        (
            [Awaited(1.0), Awaited(2.0), Awaited(98.0), Awaited(None)],
            [],
            "4 tests, about 1.7 min; 1 of them never timed, and taken for as long as the others",
        ),
    ],
)
def test_how_long_it_will_take_and_what_is_deselected(tests: list[Awaited], slow: list[Awaited], text: str) -> None:
    assert duration_text(tests, slow=slow) == text


@pytest.fixture
def store(tmp_path: Path) -> BaselineStore:
    return BaselineStore(tmp_path, "cpu-x")


def known(
    store: BaselineStore, name: str = "a", ran: Mapping[str, list[float]] | None = None, **changes: Any
) -> Awaited:
    given = {"test": f"t.py::{name}", "case_id": "ws2", "conditions": ("gloo", "warm")}
    return awaited(store, ran or {}, name=name, **given | changes)


def test_a_test_takes_the_median_of_its_last_runs(store: BaselineStore) -> None:
    runs = {"a": [1.5, 9.0, 1.2], "b": [2.5]}

    assert known(store, "a", runs) == Awaited(1.5)
    assert known(store, "new", runs) == Awaited(None)


def test_what_confirming_took_is_added_as_often_as_it_was_needed(store: BaselineStore) -> None:
    runs = {"a": [2.0, 2.0], "a confirming": [0.0, 30.0]}
    store.write(TEST, KEY, entry(1.0, launch_s=3.0))
    tests = [known(store, "a", runs), known(store, "b", runs, test=TEST)]

    assert tests == [Awaited(2.0, again_s=15.0), Awaited(3.0, has_baseline=True)]
    assert duration_text(tests, confirm_s=60.0) == "2 tests, about 20 s, and up to 60 s to confirm suspicious timings"
    assert duration_text(tests) == "2 tests, about 20 s"


def test_the_cases_of_a_baseline_are_added_and_multiplied_by_the_launches(store: BaselineStore) -> None:
    store.write(TEST, KEY, entry(1.0, 1.0, 1.0, launch_s=3.0))
    store.write(TEST, f"ws2:one.{KEY.partition('.')[2]}", entry(1.0, launch_s=2.0))
    store.write(TEST, "ws4.gloo.warm", entry(1.0, launch_s=50.0))

    assert known(store, test=TEST) == Awaited(5.0, has_baseline=True)
    assert known(store, test=TEST, launches=10).seconds == 50.0
    assert known(store, test=TEST, launches=None).seconds == 15.0, "as many as are stored"
    assert known(store, test=TEST, conditions=("mpi", "warm")).seconds is None
    assert known(store, test=TEST, conditions=("gloo", "torchrun")).seconds is None
    assert known(store, "a", {"a": [7.0]}, test=TEST).seconds == 7.0, "what it took is nearer"


def test_another_class_of_machines_is_better_than_nothing(store: BaselineStore) -> None:
    BaselineStore(store.folder, "cpu-y").write(TEST, KEY, entry(1.0, launch_s=3.0))

    assert known(store, test=TEST) == Awaited(3.0, is_elsewhere=True)
    store.write(TEST, KEY, entry(1.0, launch_s=2.0))
    assert known(store, test=TEST) == Awaited(2.0, has_baseline=True)
