"""Baseline files: chosen by name, left behind by a test that is gone, or not used by a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.cases import ON_TWO
from support.stores import CASE, PLATFORM, TEST, entry, result

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.records.case import BaselineName
from pytest_distbench.records.record import replace
from pytest_distbench.store.baselines import Baselines
from pytest_distbench.store.entries import has_test, selection, unused_baselines, with_its_work

NAMES = {
    "a2": BaselineName(platform="p", test="suites/test_a.py::test_a", key="f16-ws2.gloo.warm"),
    "a4": BaselineName(platform="p", test="suites/test_a.py::test_a", key="f16-ws4.gloo.torchrun"),
    "b2": BaselineName(platform="p", test="suites/test_b.py::test_b", key="(1, 2) or x-ws2:eff.gloo.warm"),
    "d2": BaselineName(platform="p", test="suites/test_d.py::test_d", key="tcp://b-ws2:eff.gloo.warm"),
    "ab2": BaselineName(platform="p", test="suites/test_c.py::TestC::test_ab", key="f16-ws2.gloo.warm"),
    "c2": BaselineName(platform="p", test="more/suites/test_a.py::test_a", key="f16-ws2.gloo.warm"),
}


@pytest.mark.parametrize(
    ("texts", "chosen"),
    [
        ([], {"a2", "a4", "b2", "c2", "d2", "ab2"}),
        ([" "], {"a2", "a4", "b2", "c2", "d2", "ab2"}),
        (["TEST_A"], {"a2", "a4", "c2", "ab2"}),
        (["test_b", "torchrun"], {"a4", "b2"}),
        (["more/"], {"c2"}),
        (["suites/test_a.py::test_a"], {"a2", "a4"}),
        (["suites/test_a.py::Test"], set()),
        (["suites/test_c.py::TestC"], {"ab2"}),
        (["suites/test_a.py::test_a[f16-ws2]"], {"a2"}),
        (["suites/test_a.py::test_a[f16-ws2.gloo.warm]"], {"a2"}),
        (["suites/test_a.py::test_a[f16"], set()),
        (["suites/test_b.py::test_b[(1, 2) or x-ws2]"], {"b2"}),
        (["suites/test_d.py::test_d[tcp://b-ws2]"], {"d2"}),
        (["nothing"], set()),
    ],
)
def test_texts_choose(texts: list[str], chosen: set[str]) -> None:
    choice = selection(texts)

    assert {short for short, name in NAMES.items() if choice(name)} == chosen


@pytest.mark.parametrize("text", ["a and b", "a or", "not a", "not(a)", "(a or b) and c", "a and not b"])
def test_what_looks_like_an_expression_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"found the word '(and|or|not)'.*several -k choose"):
        selection(["test_a", text])


SOURCE = """
from elsewhere import test_imported, other as test_renamed
test_assigned = make()
def test_plain(): pass
class TestBare:
    def test_inside(self): pass
class TestChild(Base):
    pass
if CONDITION:
    def test_sometimes(): pass
"""


@pytest.mark.parametrize(
    ("test", "is_there"),
    [
        ("test_x.py::test_plain", True),
        ("test_x.py::test_imported", True),
        ("test_x.py::test_renamed", True),
        ("test_x.py::test_assigned", True),
        ("test_x.py::TestBare::test_inside", True),
        ("test_x.py::TestChild::test_inherited", True),
        ("test_broken.py::test_plain", True),
        ("test_x.py::test_gone", False),
        ("test_x.py::test_sometimes", True),
        ("test_x.py::TestBare::test_gone", False),
        ("test_x.py::test_inside", False),
        ("test_x.py::TestGone::test_inside", False),
        ("test_gone.py::test_plain", False),
    ],
)
def test_a_test_counts_as_gone_only_if_it_certainly_is(tmp_path: Path, test: str, is_there: bool) -> None:
    (tmp_path / "test_x.py").write_text(SOURCE)
    (tmp_path / "test_broken.py").write_text("def test_plain(:")

    assert has_test(tmp_path, test) is is_there


@pytest.mark.parametrize(
    ("before", "now", "is_same"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "c": 2}, True),
        ({"a": [1, 2]}, {"items": [1, 2]}, True),
        ({"a": 1, "b": 2}, {"c": 1, "d": 2}, True),
        ({"a": 2, "b": 1}, {"c": 2, "d": 1}, True),
        ({"a": 1, "b": 2}, {"a": 2, "b": 1}, False),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": 1}, {"b": True}, False),
        ({}, {}, True),
    ],
)
def test_work_is_the_same_under_other_names(before: dict[str, object], now: dict[str, object], is_same: bool) -> None:
    old, new = replace(CASE, params=before), replace(CASE, params=now)
    known = with_its_work(entry(1.0, workload=old.workload, params=before), new)

    assert (known.workload == new.workload) is is_same


def stored_of_unused(store: Baselines, test: str, key: str, *, backend: str = "gloo", **under: Any) -> None:
    conditions = replace(ON_TWO, backend=backend, **under)
    store.write(test, f"{key}.{backend}.warm", entry(1.0, conditions=conditions))


@pytest.fixture
def store(tmp_path: Path) -> Baselines:
    (tmp_path / "suites").mkdir()
    for name in ("test_a.py", "test_b.py"):
        (tmp_path / "suites" / name).touch()
    return Baselines(tmp_path / "baselines", PLATFORM)


def unused(store: Baselines, seen: dict[tuple[str, str], bool], *reported: str, root: str = ".") -> list[str]:
    found = unused_baselines(
        store,
        [result(1.0, case=replace(CASE, test=test, id=case_id)) for (test, case_id), ran in seen.items() if ran],
        reported={"suites/test_a.py", *reported},
        seen=seen,
        rootpath=store.folder.parent,
        roots=[store.folder, (store.folder.parent / root).resolve()],
    )
    return [str(name) for name in found]


@pytest.mark.parametrize(
    ("test", "ran", "key", "ranks", "is_unused"),
    [
        (TEST, "ws2", "ws2", 2, False),
        (TEST, "ws2", "old-ws2", 2, True),
        ("suites/test_a.py::test_gone", "ws2", "ws2", 2, True),
        ("suites/test_gone.py::test_a", "ws2", "ws2", 2, True),
        ("suites/test_b.py::test_b", "ws2", "ws2", 2, False),
        # of the ranks of a run: one rank of ``[ws2]`` was given up to be pruned by a run of ``[ws1]``
        (TEST, "ws1", "ws2:local@ws1", 1, False),
        (TEST, "ws1", "ws2:fixed", 1, False),
        (TEST, "ws2", "ws1", 1, False),
        (TEST, "a-ws2", "ws2-b", 2, True),
        (TEST, "ws2", "ws22", 2, False),
        (TEST, "ws2", "ws2:local@ws1", 1, True),
        (TEST, "ws2", "old-ws2:local@ws1", 1, True),
    ],
)
def test_a_baseline_is_unused_if_its_test_ran_without_it_or_is_gone(
    store: Baselines, test: str, ran: str, key: str, ranks: int, *, is_unused: bool
) -> None:
    stored_of_unused(store, test, key, world_size=ranks)

    assert unused(store, {(TEST, ran): True}) == ([f"{test}[{key}.gloo.warm]"] if is_unused else [])


def test_baselines_of_other_conditions_belong_to_other_runs(store: Baselines) -> None:
    stored_of_unused(store, TEST, "ws4", world_size=4)
    stored_of_unused(store, TEST, "old-ws2", backend="nccl")
    stored_of_unused(store, TEST, "ws2:@cooling=low", around={"cooling": "low"})

    assert unused(store, {(TEST, "ws2"): True}) == []


def test_baselines_outside_the_folders_of_the_run_are_left_alone(store: Baselines) -> None:
    stored_of_unused(store, "suites/test_gone.py::test_a", "ws2")

    assert unused(store, {(TEST, "ws2"): True}, root="suites/test_a.py") == []
    assert unused(store, {(TEST, "ws2"): True}, root="suites") != []


def test_a_run_that_measured_nothing_knows_nothing(store: Baselines) -> None:
    stored_of_unused(store, "suites/test_gone.py::test_a", "ws2")

    assert unused(store, {(TEST, "ws2"): False}) == []


@pytest.mark.parametrize("text", ["android", "floor-ws2", "notes", "orb"])
def test_a_name_that_merely_holds_such_a_word_is_a_name(text: str) -> None:
    assert selection([text])(BaselineName(platform="p", test=f"test_{text}.py::test_it", key="ws2.gloo.warm"))


def test_a_skipped_case_keeps_its_baselines_also_those_of_its_named_runs(store: Baselines) -> None:
    for key in ("b-ws2", "b-ws2:one", "bb-ws2"):
        stored_of_unused(store, TEST, key)

    assert unused(store, {(TEST, "ws2"): True, (TEST, "b-ws2"): False}) == [f"{TEST}[bb-ws2.gloo.warm]"]
