"""Bounds: as people write them, as a call gives them, and whether a value holds them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.documents import accepted

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.records.metric import Bound, Term, bounds_between, terms_of, tightest


@pytest.mark.parametrize(
    ("written", "terms"),
    [
        (0.0002, [Term(None, 0.0002, "")]),
        (3, [Term(None, 3.0, "")]),
        ("200us", [Term(None, 200.0, "us")]),
        (" >= 10 GB/s ", [Term("least", 10.0, "GB/s")]),
        ("<=2.5e-1", [Term("most", 0.25, "")]),
        ("<= 120 samples/s", [Term("most", 120.0, "samples/s")]),
        (">= 0.5 and <= 2.5", [Term("least", 0.5, ""), Term("most", 2.5, "")]),
    ],
)
def test_a_bound_has_a_sign_a_number_and_a_unit(written: object, terms: list[Term]) -> None:
    assert terms_of(written) == terms


@pytest.mark.parametrize(
    "written", ["", "fast", "<=", "< 5", "1 2", "nan", "1e999 s", float("inf"), float("nan"), True, None, [1],
                ">= 1 and >= 2", "1 and 2", "<= 1 and 2", ">= 1 and <= 2 and <= 3"]
)  # fmt: skip
def test_what_is_no_bound_is_told_with_examples(written: object) -> None:
    with pytest.raises(ConfigurationError, match=r"is no bound: wanted a number, or a text such as '200us'"):
        terms_of(written)


@given(st.text() | st.from_regex(r"[<>=0-9. a-zA-Z/%]{0,20}", fullmatch=True))
def test_any_text_is_a_bound_or_a_clear_error(text: str) -> None:
    terms = accepted(terms_of, text, "is no bound")

    assert terms is None or all(abs(term.value) < float("inf") for term in terms)


def test_a_bound_is_kept_by_a_value_and_the_tightest_decides() -> None:
    most, least = Bound(side="most", value=2.0, where="x"), Bound(side="least", value=2.0, where="x")
    assert [most.holds(value) for value in (1.9, 2.0, 2.1, None)] == [True, True, False, False]
    assert [least.holds(value) for value in (1.9, 2.0, 2.1, None)] == [False, True, True, False]

    found = bounds_between("1us", "200 us", unit="s", where="a.py:1")
    assert [(bound.side, bound.value, bound.where) for bound in found] == [
        ("least", 1e-6, "a.py:1"),
        ("most", 0.0002, "a.py:1"),
    ]
    assert bounds_between(None, None, unit="s", where="") == []
    assert bounds_between(None, "95 %", unit="", where="")[0].value == 0.95

    bounds = [Bound(side="most", value=value, where="x") for value in (3.0, 2.0)]
    assert (tightest(bounds, "most"), tightest(bounds, "least")) == (2.0, None)


@pytest.mark.parametrize(
    ("at_least", "at_most", "message"),
    [
        (None, "10 GB/s", "at_most: the unit 'GB/s' does not fit: wanted a time such as 200us"),
        (None, ">= 3", "at_most='>= 3': leave the sign out, at_most says it"),
        ("1 and 2", None, "at_least: '1 and 2' is no bound"),
        (2, 1, "at_least=2 is more than at_most=1"),
    ],
)
def test_what_cannot_be_is_told(at_least: object, at_most: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        bounds_between(at_least, at_most, unit="s", where="")
