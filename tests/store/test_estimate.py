"""How long a run will take: from the last runs of its tests, or from their baselines."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.stores import KEY, TEST, entry

from pytest_distbench.report.texts.header import Awaited, Estimate, estimate
from pytest_distbench.store.baselines import BaselineStore


@pytest.fixture
def store(tmp_path: Path) -> BaselineStore:
    return BaselineStore(tmp_path, "cpu-x")


def awaited(name: str = "a", **changes: object) -> Awaited:
    return Awaited(**{"name": name, "test": f"t.py::{name}", "case_id": "ws2", "backend": "gloo"} | changes)  # type: ignore[arg-type]


def found(store: BaselineStore, *tests: Awaited, **ran: list[float]) -> Estimate:
    return estimate(store, tests, ran, launcher="warm")


def test_a_test_takes_the_median_of_its_last_runs_and_one_of_which_nothing_is_known_as_long_as_the_others(
    store: BaselineStore,
) -> None:
    runs = {"a": [1.5, 9.0, 1.2], "b": [2.5], "c": [100.0]}

    assert found(store, awaited("a"), awaited("b"), **runs) == Estimate(tests=2, seconds=4.0)
    assert found(store, awaited("new"), *map(awaited, "abc"), **runs) == Estimate(tests=4, seconds=106.5, unknown=1)
    assert found(store, awaited()) == Estimate(tests=1, seconds=None, unknown=1)
    assert found(store) == Estimate(tests=0, seconds=None)


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
