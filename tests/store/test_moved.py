"""Which stored entries are of tests that are gone, and which a new case takes the place of."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.stores import CASE, KEY, PLATFORM, TEST, entry, result

from pytest_distbench.records.case import Case
from pytest_distbench.records.record import replace
from pytest_distbench.store.baselines import BaselineStore
from pytest_distbench.store.moved import GoneTests, closest, has_test, with_its_work

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


def stored(folder: Path, *cases: Case, **params: object) -> BaselineStore:
    store = BaselineStore(folder / "baselines", PLATFORM)
    for case in cases:
        case = replace(case, params=params)
        store.write(case.test, case.key, entry(1.0, workload=case.workload, test_id=case.id, params=params))
    return store


def found(store: BaselineStore, case: Case, **collected: set[str]) -> list[str]:
    fitting = GoneTests(store, store.folder.parent, collected).fitting(case)
    return [str(file.name) for file in closest(fitting, case, result(1.0).launches[0])]


def test_a_function_that_is_gone_leaves_its_entry_to_the_closest_case(tmp_path: Path) -> None:
    other = replace(CASE, test="suites/test_b.py::test_other")
    store = stored(tmp_path, CASE, other)

    assert found(store, replace(CASE, test="suites/test_c.py::test_a")) == [f"{TEST}[{KEY}]"]
    assert found(store, replace(CASE, test="suites/test_b.py::test_new")) == [f"{other.test}[{KEY}]"]
    assert len(found(store, replace(CASE, test="suites/test_c.py::test_new"))) == 2
    assert found(store, replace(CASE, id="ws4", test="suites/test_c.py::test_a")) == [], "other ranks"
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "test_a.py").write_text("def test_a(): pass")
    assert found(store, replace(CASE, test="suites/test_c.py::test_a")) == [f"{other.test}[{KEY}]"]


def test_an_id_is_gone_where_its_function_was_collected_without_it(tmp_path: Path) -> None:
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "test_a.py").write_text("def test_a(): pass")
    store, new = stored(tmp_path, CASE), replace(CASE, id="x-ws2")

    assert found(store, new) == [], "nobody has collected it"
    assert found(store, new, **{TEST: {"ws2", "x-ws2"}}) == []
    assert found(store, new, **{TEST: {"x-ws2"}}) == [f"{TEST}[{KEY}]"]


@pytest.mark.parametrize(
    ("before", "now", "is_same"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "c": 2}, True),
        ({"a": [1, 2]}, {"items": [1, 2]}, True),
        ({"a": 1, "b": 2}, {"c": 1, "d": 2}, True),
        ({"a": 1, "b": 2}, {"a": 2, "b": 1}, False),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": 1}, {"b": True}, False),
        ({}, {}, True),
    ],
)
def test_work_is_the_same_under_other_names_of_parameters(
    before: dict[str, object], now: dict[str, object], is_same: bool
) -> None:
    old, new = replace(CASE, params=before), replace(CASE, params=now)
    known = with_its_work(entry(1.0, workload=old.workload, params=before), new)

    assert (known.workload == new.workload) is is_same
