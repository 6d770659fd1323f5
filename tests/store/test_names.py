"""Choosing entries by -k: parts of names, whole names, node ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.records.case import EntryName
from pytest_distbench.store.names import selection

NAMES = {
    "a2": EntryName(platform="p", test="suites/test_a.py::test_a", key="f16-ws2.gloo.warm"),
    "a4": EntryName(platform="p", test="suites/test_a.py::test_a", key="f16-ws4.gloo.torchrun"),
    "b2": EntryName(platform="p", test="suites/test_b.py::test_b", key="(1, 2) or x-ws2:eff.gloo.warm"),
    "d2": EntryName(platform="p", test="suites/test_d.py::test_d", key="tcp://b-ws2:eff.gloo.warm"),
    "c2": EntryName(platform="p", test="more/suites/test_a.py::test_a", key="f16-ws2.gloo.warm"),
}


@pytest.mark.parametrize(
    ("expression", "chosen"),
    [
        ("", {"a2", "a4", "b2", "c2", "d2"}),
        ("suites/test_d.py::test_d[tcp://b-ws2]", {"d2"}),
        ("TEST_A", {"a2", "a4", "c2"}),
        ("test_a and ws2", {"a2", "c2"}),
        ("test_b or torchrun", {"a4", "b2"}),
        ("not test_b and not more/", {"a2", "a4", "d2"}),
        ("not (test_b or more/)", {"a2", "a4", "d2"}),
        ("ws2 and not (eff or more)", {"a2"}),
        ("suites/test_a.py::test_a", {"a2", "a4"}),
        ("suites/test_a.py::test_a[f16-ws2]", {"a2"}),
        ("suites/test_a.py::test_a[f16-ws2.gloo.warm]", {"a2"}),
        ("suites/test_b.py::test_b[(1, 2) or x-ws2]", {"b2"}),
        ("nothing", set()),
    ],
)
def test_an_expression_chooses(expression: str, chosen: set[str]) -> None:
    choice = selection(expression)

    assert {short for short, name in NAMES.items() if choice(name)} == chosen


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("a and", "wanted a part of a name, 'not' or '\\(' at the end"),
        ("a b", "wanted 'and' or 'or' before 'b'"),
        ("(a or b", "wanted '\\)' at the end"),
        ("not", "at the end"),
        ("or a", "before 'or'"),
        (")", "before '\\)'"),
    ],
)
def test_what_is_no_expression_is_explained(expression: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        selection(expression)


@given(st.lists(st.sampled_from(["and", "or", "not", "(", ")", "ws2", "::", "test_a"]), max_size=8).map(" ".join))
def test_any_expression_chooses_or_is_explained(expression: str) -> None:
    try:
        choice = selection(expression)
    except ConfigurationError as error:
        assert "write for example" in str(error)  # noqa: PT017 # either is right
    else:
        assert all(choice(name) in (True, False) for name in NAMES.values())
