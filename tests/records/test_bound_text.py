"""Bounds as people write them: numbers and texts, with and without a sign and a unit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.documents import accepted

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.records.bound import Term, terms_of


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
