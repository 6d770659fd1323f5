"""A bound holds or does not; what a call gives is one in the metric's unit."""

from __future__ import annotations

import pytest

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.records.bound import Bound, bounds_between, tightest


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
