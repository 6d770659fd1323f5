"""Which stored entries a whole, green run did not use. No test of pytest is needed for that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.cases import ON_TWO

from pytest_distbench.records.baseline import BaselineEntry
from pytest_distbench.records.case import Case, Conditions
from pytest_distbench.records.environment import Environment
from pytest_distbench.records.run import CaseResult, ReferenceRecord
from pytest_distbench.store.baselines import BaselineStore
from pytest_distbench.store.unused import unused_entries

TEST = "suites/test_a.py::test_a"


def stored(store: BaselineStore, test: str, key: str, *, backend: str = "gloo", **under: Any) -> None:
    conditions = Conditions(**{"world_size": 2, "backend": backend, "launcher": "warm", **under})
    entry = BaselineEntry(workload="", conditions=conditions, software={}, metrics={})
    store.write(test, f"{key}.{backend}.warm", entry)


def result(test: str, case_id: str) -> CaseResult:
    return CaseResult(
        nodeid=f"{test}[{case_id}]",
        case=Case(test=test, id=case_id, conditions=ON_TWO, device="cpu"),
        environment=Environment(platform="p", device="X", cores=2, software={}),
        launches=[],
        verdicts=[],
        reference=ReferenceRecord(kind="stored"),
    )


@pytest.fixture
def store(tmp_path: Path) -> BaselineStore:
    (tmp_path / "suites").mkdir()
    for name in ("test_a.py", "test_b.py"):
        (tmp_path / "suites" / name).touch()
    return BaselineStore(tmp_path / "baselines", "p")


def unused(store: BaselineStore, seen: dict[tuple[str, str], bool], *reported: str, root: str = ".") -> list[str]:
    found = unused_entries(
        store,
        [result(test, case_id) for (test, case_id), ran in seen.items() if ran],
        reported={"suites/test_a.py", *reported},
        seen=seen,
        rootpath=store.folder.parent,
        roots=[(store.folder.parent / root).resolve()],
    )
    return [str(name) for name in found]


@pytest.mark.parametrize(
    ("test", "key", "is_unused"),
    [
        (TEST, "ws2", False),
        (TEST, "old-ws2", True),
        ("suites/test_a.py::test_gone", "ws2", True),
        ("suites/test_gone.py::test_a", "ws2", True),
        ("suites/test_b.py::test_b", "ws2", False),
    ],
)
def test_an_entry_is_unused_if_its_test_was_there_or_is_gone(
    store: BaselineStore, test: str, key: str, *, is_unused: bool
) -> None:
    stored(store, test, key)

    assert unused(store, {(TEST, "ws2"): True}) == ([f"{test}[{key}.gloo.warm]"] if is_unused else [])


def test_entries_of_other_conditions_belong_to_other_runs(store: BaselineStore) -> None:
    stored(store, TEST, "ws4", world_size=4)
    stored(store, TEST, "old-ws2", backend="nccl")
    stored(store, TEST, "ws2:@cooling=low", around={"cooling": "low"})

    assert unused(store, {(TEST, "ws2"): True}) == []


def test_a_skipped_case_keeps_its_entries_also_those_of_its_named_runs(store: BaselineStore) -> None:
    for key in ("b-ws2", "b-ws2:one", "bb-ws2"):
        stored(store, TEST, key)

    assert unused(store, {(TEST, "ws2"): True, (TEST, "b-ws2"): False}) == [f"{TEST}[bb-ws2.gloo.warm]"]


@pytest.mark.parametrize(
    ("ran", "key", "ranks", "is_unused"),
    [
        ("ws1", "ws2:local@ws1", 1, False),
        ("ws1", "ws2:fixed", 1, False),
        ("ws2", "ws1", 1, False),
        ("a-ws2", "ws2-b", 2, True),
        ("ws2", "ws22", 2, False),
        ("ws2", "ws2:local@ws1", 1, True),
        ("ws2", "old-ws2:local@ws1", 1, True),
    ],
)
def test_the_ranks_of_a_run_say_nothing_of_those_of_its_test(
    store: BaselineStore, ran: str, key: str, ranks: int, *, is_unused: bool
) -> None:
    """One rank of ``[ws2]`` was given up to be pruned by a run of ``[ws1]``."""
    stored(store, TEST, key, world_size=ranks)

    assert unused(store, {(TEST, ran): True}) == ([f"{TEST}[{key}.gloo.warm]"] if is_unused else [])


def test_entries_outside_the_folders_of_the_run_are_left_alone(store: BaselineStore) -> None:
    stored(store, "suites/test_gone.py::test_a", "ws2")

    assert unused(store, {(TEST, "ws2"): True}, root="suites/test_a.py") == []
    assert unused(store, {(TEST, "ws2"): True}, root="suites") != []


def test_a_run_that_measured_nothing_knows_nothing(store: BaselineStore) -> None:
    stored(store, "suites/test_gone.py::test_a", "ws2")

    assert unused(store, {(TEST, "ws2"): False}) == []
