"""Choosing entries by name: parts, whole names, node ids."""

from __future__ import annotations

import pytest

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.records.case import EntryName
from pytest_distbench.store.names import selection

NAMES = {
    "a2": EntryName(platform="p", test="suites/test_a.py::test_a", key="f16-ws2.gloo.warm"),
    "a4": EntryName(platform="p", test="suites/test_a.py::test_a", key="f16-ws4.gloo.torchrun"),
    "b2": EntryName(platform="p", test="suites/test_b.py::test_b", key="(1, 2) or x-ws2:eff.gloo.warm"),
    "d2": EntryName(platform="p", test="suites/test_d.py::test_d", key="tcp://b-ws2:eff.gloo.warm"),
    "ab2": EntryName(platform="p", test="suites/test_c.py::TestC::test_ab", key="f16-ws2.gloo.warm"),
    "c2": EntryName(platform="p", test="more/suites/test_a.py::test_a", key="f16-ws2.gloo.warm"),
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


@pytest.mark.parametrize("text", ["android", "floor-ws2", "notes", "orb"])
def test_a_name_that_merely_holds_such_a_word_is_a_name(text: str) -> None:
    assert selection([text])(EntryName(platform="p", test=f"test_{text}.py::test_it", key="ws2.gloo.warm"))
