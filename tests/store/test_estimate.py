"""How long a run will take, from the baselines of its tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.stores import KEY, TEST, entry

from pytest_distbench.store.baselines import BaselineStore
from pytest_distbench.store.estimate import Estimate, estimate

OTHER = ("suites/test_a.py::test_other", "ws2", "gloo")


@pytest.fixture
def store(tmp_path: Path) -> BaselineStore:
    return BaselineStore(tmp_path, "cpu-x")


def found(store: BaselineStore, *more: tuple[str, str, str], launches: int = 1) -> Estimate:
    return estimate(store, [(TEST, "ws2", "gloo"), *more], launcher="warm", launches=launches)


def test_nothing_is_known_without_baselines(store: BaselineStore) -> None:
    assert found(store) == Estimate(tests=1, unknown=1)


def test_the_cases_of_a_test_are_added_and_multiplied_by_the_launches(store: BaselineStore) -> None:
    store.write(TEST, KEY, entry(1.0, launch_s=3.0))
    store.write(TEST, f"ws2:one.{KEY.partition('.')[2]}", entry(1.0, launch_s=2.0))
    store.write(TEST, "ws4.gloo.warm", entry(1.0, launch_s=50.0))

    assert found(store, launches=10).seconds == 50.0


def test_a_test_of_which_nothing_is_known_is_taken_for_as_long_as_the_others(store: BaselineStore) -> None:
    store.write(TEST, KEY, entry(1.0, launch_s=3.0))
    store.write(OTHER[0], KEY, entry(1.0))

    assert found(store, OTHER) == Estimate(tests=2, unknown=1, seconds=6.0)


def test_another_class_of_machines_is_better_than_nothing(store: BaselineStore) -> None:
    BaselineStore(store.folder, "cpu-y").write(TEST, KEY, entry(1.0, launch_s=3.0))

    assert found(store) == Estimate(tests=1, seconds=3.0, elsewhere=1)
