"""The key of a case, as a record and as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_distbench.records.case import Case, CaseKey

names = st.text(st.characters(exclude_characters=".", exclude_categories=("Cs",)), min_size=1)


@given(st.text(), names, names)
def test_a_key_is_read_back_from_its_text_whatever_the_id_holds(case_id: str, backend: str, launcher: str) -> None:
    key = CaseKey(case_id=case_id, backend=backend, launcher=launcher)

    assert CaseKey.parse(str(key)) == key


def test_text_without_a_backend_and_a_launcher_is_no_key() -> None:
    with pytest.raises(ValueError, match=r"'ws2\.gloo' is no key of a case: wanted CASE\.BACKEND\.LAUNCHER"):
        CaseKey.parse("ws2.gloo")


def test_the_tests_id_ends_before_a_colon_or_is_all() -> None:
    key = CaseKey(case_id="a:b-ws2:one", backend="gloo", launcher="warm")

    assert key.test_ids == ["a", "a:b-ws2", "a:b-ws2:one"]


@pytest.mark.parametrize(("case_id", "title"), [("a::b-ws2", "TestC::test_b[a::b-ws2]"), ("", "TestC::test_b")])
def test_a_title_is_the_function_with_its_class_and_the_id(case_id: str, title: str) -> None:
    key = CaseKey(case_id=case_id, backend="gloo", launcher="warm")

    assert Case(test="a/test_a.py::TestC::test_b", key=key, world_size=2, device="cpu").title == title


def test_the_workload_does_not_depend_on_backend_or_launcher() -> None:
    """Stored entries carry it: what it is made of must not change."""
    key = CaseKey(case_id="x-ws2", backend="gloo", launcher="warm")
    case = Case(test="t", key=key, world_size=2, device="cpu", params={"b": [1, 2.5], "a": "x"})

    assert case.workload == "c6b2b44a"
