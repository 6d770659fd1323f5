"""The lines before the first test: what is measured on what, against which baselines, and how long it will take."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from support.results import result
from support.stores import KEY, TEST, entry

from pytest_distbench.machine.gpus import Gpus
from pytest_distbench.records.environment import Gpu
from pytest_distbench.records.record import replace
from pytest_distbench.report.terminal import Awaited, Estimate, duration_text, estimate, header_lines
from pytest_distbench.store.baselines import BaselineStore


def lines(folder: Path, *, shares_host: bool = False, **changes: Any) -> list[str]:
    given = {"world_sizes": (2, 4), "gpus": Gpus(), "backend": "gloo", "launcher": "warm", "update": "", "against": ""}
    environment = replace(result().environment, shares_host=shares_host)
    return header_lines(environment, BaselineStore(folder, "cpu-x"), **(given | changes))


def test_the_header_names_gpus_updates_and_revisions(tmp_path: Path) -> None:
    BaselineStore(tmp_path, "cpu-x").write(TEST, KEY, entry(1.0))
    first, second = lines(tmp_path)
    assert first.endswith(": world size 2, 4, gloo, 2 CPU cores (X), torch 2.14.0, warm launcher")
    assert second == f"distbench: baselines {tmp_path}/cpu-x (1 case)"

    gpus = Gpus(visible=tuple(Gpu(name="NVIDIA H200", uuid=f"GPU-{i}") for i in range(8)))
    assert "nccl, 8 GPUs (X)" in lines(tmp_path, gpus=gpus, backend="nccl")[0]

    gpus = Gpus(visible=(Gpu(name="NVIDIA H200", uuid="GPU-1"),), unreadable=("GPU 0: lost",))
    first, second, *_ = lines(tmp_path, gpus=gpus, backend="nccl")
    assert "nccl, 1 GPU (X)" in first
    assert second == "distbench: not used: GPU 0: lost"

    assert lines(tmp_path, update="new")[-1] == "distbench: update=new; baselines will be written"

    told = "distbench: interleaved A/B against main; stored baselines are not used"
    assert lines(tmp_path, against="main")[1:] == [told]


@pytest.mark.parametrize("against", ["", "main"])
def test_clocks_on_a_shared_host_are_told_to_be_others_too(tmp_path: Path, against: str) -> None:
    assert "(--distbench-share=host): CPU clocks" in lines(tmp_path, shares_host=True, against=against)[1]
    assert not any("share=host" in line for line in lines(tmp_path, against=against))


@pytest.mark.parametrize(
    ("found", "slow", "text"),
    [
        (Estimate(tests=2, seconds=170.0), 0, "2 tests, about 2.8 min"),
        (Estimate(tests=1, seconds=0.2), 0, "1 test, about 1 s"),
        (Estimate(tests=1, seconds=9.0), 2, "1 test, about 9 s; 2 slow tests deselected (--distbench-full runs them)"),
        (Estimate(tests=1, seconds=400.0), 0, "1 test, about 7 min"),
        (
            Estimate(tests=2, seconds=60.0, unknown=1, elsewhere=1),
            0,
            "2 tests, about 60 s, as on other machines; 1 of them never timed, and taken for as long as the others",
        ),
        (
            Estimate(tests=1, seconds=None, unknown=1),
            0,
            "1 test; the first run shows how long that takes",
        ),
        (Estimate(tests=0, seconds=None), 1, "1 slow test deselected (--distbench-full runs them in about 9 s)"),
    ],
)
def test_how_long_it_will_take_and_what_is_deselected(found: Estimate, slow: int, text: str) -> None:
    unknown = slow > 1
    assert duration_text(found, slow=Estimate(tests=slow, seconds=9.0 * slow, unknown=unknown)) == text


@pytest.fixture
def store(tmp_path: Path) -> BaselineStore:
    return BaselineStore(tmp_path, "cpu-x")


def awaited(name: str = "a", **changes: object) -> Awaited:
    return Awaited(
        **{"name": name, "confirming": f"{name}2", "test": f"t.py::{name}", "case_id": "ws2", "backend": "gloo"}
        | changes
    )  # type: ignore[arg-type]


def found(store: BaselineStore, *tests: Awaited, **ran: list[float]) -> Estimate:
    """What is known; that nobody knows what confirming takes is a test of its own."""
    return dataclasses.replace(estimate(store, tests, ran, launcher="warm"), confirmable=0)


def test_a_test_takes_the_median_of_its_last_runs_and_one_of_which_nothing_is_known_as_long_as_the_others(
    store: BaselineStore,
) -> None:
    runs = {"a": [1.5, 9.0, 1.2], "b": [2.5], "c": [100.0]}

    assert found(store, awaited("a"), awaited("b"), **runs) == Estimate(tests=2, seconds=4.0)
    assert found(store, awaited("new"), *map(awaited, "abc"), **runs) == Estimate(tests=4, seconds=106.5, unknown=1)
    assert found(store, awaited()) == Estimate(tests=1, seconds=None, unknown=1)
    assert found(store) == Estimate(tests=0, seconds=None)


def test_what_confirming_took_is_added_as_often_as_it_was_needed(store: BaselineStore) -> None:
    runs = {"a": [2.0, 2.0], "a2": [0.0, 30.0]}
    store.write(TEST, KEY, entry(1.0, launch_s=3.0))
    known = estimate(store, [awaited("a"), awaited("b", test=TEST)], runs, launcher="warm")

    assert (known.seconds, known.confirmable) == (20.0, 1)
    told = duration_text(known, slow=Estimate(tests=0, seconds=None), confirm_s=60.0)
    assert told == "2 tests, about 20 s, and up to 60 s to confirm suspicious timings"
    assert duration_text(known, slow=Estimate(tests=0, seconds=None)) == "2 tests, about 20 s"


def test_the_cases_of_a_baseline_are_added_and_multiplied_by_the_launches(store: BaselineStore) -> None:
    store.write(TEST, KEY, entry(1.0, 1.0, 1.0, launch_s=3.0))
    store.write(TEST, f"ws2:one.{KEY.partition('.')[2]}", entry(1.0, launch_s=2.0))
    store.write(TEST, "ws4.gloo.warm", entry(1.0, launch_s=50.0))

    assert found(store, awaited(test=TEST)).seconds == 5.0
    assert found(store, awaited(test=TEST, launches=10)).seconds == 50.0
    assert found(store, awaited(test=TEST, launches=None)).seconds == 15.0, "as many as are stored"
    assert found(store, awaited(test=TEST, backend="mpi")).unknown == 1
    assert estimate(store, [awaited(test=TEST)], {}, launcher="torchrun").unknown == 1
    assert found(store, awaited(test=TEST), a=[7.0]).seconds == 7.0, "what it took is nearer"


def test_another_class_of_machines_is_better_than_nothing(store: BaselineStore) -> None:
    BaselineStore(store.folder, "cpu-y").write(TEST, KEY, entry(1.0, launch_s=3.0))

    assert found(store, awaited(test=TEST)) == Estimate(tests=1, seconds=3.0, elsewhere=1)
    store.write(TEST, KEY, entry(1.0, launch_s=2.0))
    assert found(store, awaited(test=TEST)) == Estimate(tests=1, seconds=2.0)
