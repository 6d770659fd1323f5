"""Metrics: their names, bounds and quantiles, the iterations of a loop, and the line through a sweep."""

from __future__ import annotations

import math

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.documents import accepted
from support.metrics import metric

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.records.iteration import CANDIDATE, Breakdown, BusyCommunication, CaseTrace, iteration_name
from pytest_distbench.records.kinds import MOST_KEPT, distribution, nearest_rank, quantile
from pytest_distbench.records.metric import (
    Bound,
    Term,
    as_scalar,
    bounds_between,
    is_own_name,
    metric_key,
    terms_of,
    tightest,
)


def test_a_key_is_the_name_with_its_point_and_values_are_pythons() -> None:
    assert metric_key("latency", {}) == "latency"
    assert metric_key("latency", {"seed": 1, "message_bytes": 4096}) == "latency[message_bytes=4096,seed=1]"

    with pytest.raises(ValueError, match=r"'best'.*lower"):
        metric(1.0, "best")  # type: ignore[arg-type]

    taken = [True, "x", 3, 2.5, numpy.int64(3), numpy.float32(0.5), numpy.bool_(1), numpy.str_("x"), numpy.array([2])]
    refused = [None, "a\nb", 2**54, 1e301, math.nan, 1j, [1], numpy.ones(2), numpy.complex64(1), object()]
    assert [as_scalar(value) for value in taken] == [True, "x", 3, 2.5, 3, 0.5, True, "x", 2]
    assert {type(as_scalar(value)) for value in taken} == {bool, str, int, float}
    assert [as_scalar(value) for value in refused] == [None] * len(refused)


@pytest.mark.parametrize("name", ["wall_time", "fingerprint", "phase/step/forward"])
def test_names_that_the_plugin_records_under_are_its_own(name: str) -> None:
    assert is_own_name(name)
    assert not is_own_name(f"my_{name}")


@pytest.mark.parametrize(
    ("written", "terms"),
    [
        (0.0002, [(None, 0.0002, "")]),
        (3, [(None, 3.0, "")]),
        ("200us", [(None, 200.0, "us")]),
        (" >= 10 GB/s ", [("least", 10.0, "GB/s")]),
        ("<=2.5e-1", [("most", 0.25, "")]),
        ("<= 120 samples/s", [("most", 120.0, "samples/s")]),
        (">= 0.5 and <= 2.5", [("least", 0.5, ""), ("most", 2.5, "")]),
    ],
)
def test_a_bound_has_a_sign_a_number_and_a_unit(written: object, terms: list[Term]) -> None:
    assert terms_of(written) == terms


@pytest.mark.parametrize(
    "written", ["", "fast", "<=", "< 5", "1 2", "nan", "1e999 s", float("inf"), float("nan"), True, None, [1],
                ">= 1 and >= 2", "1 and 2", "<= 1 and 2", ">= 1 and <= 2 and <= 3"]
)  # fmt: skip
def test_the_error_for_an_invalid_bound_has_examples(written: object) -> None:
    with pytest.raises(ConfigurationError, match=r"is no bound: wanted a number, or a text such as '200us'"):
        terms_of(written)


@given(st.text() | st.from_regex(r"[<>=0-9. a-zA-Z/%]{0,20}", fullmatch=True))
def test_any_text_is_a_bound_or_a_clear_error(text: str) -> None:
    terms = accepted(terms_of, text, "is no bound")

    assert terms is None or all(abs(value) < float("inf") for _, value, _ in terms)


def test_a_bound_is_kept_by_a_value_and_the_tightest_decides() -> None:
    most, least = Bound(side="most", value=2.0, where="x"), Bound(side="least", value=2.0, where="x")
    assert [most.holds(value) for value in (1.9, 2.0, 2.1, None)] == [True, True, False, False]
    assert [least.holds(value) for value in (1.9, 2.0, 2.1, None)] == [False, True, True, False]

    found = bounds_between("1us", "200 us", unit="s", where="a.py:1")
    sides = [("least", 1e-6, "a.py:1"), ("most", 0.0002, "a.py:1")]
    assert [(bound.side, bound.value, bound.where) for bound in found] == sides
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
def test_impossible_bounds_are_an_error(at_least: object, at_most: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        bounds_between(at_least, at_most, unit="s", where="")


finite = st.floats(-1e6, 1e6)


@given(st.lists(finite, min_size=1, max_size=40), st.floats(0, 1))
def test_quantile_is_numpys(values: list[float], q: float) -> None:
    assert quantile(values, q) == pytest.approx(numpy.quantile(values, q), rel=1e-9, abs=1e-6)


def test_quantiles_of_few_values_are_those_values() -> None:
    assert nearest_rank([5, 1, 3], 0.5) == 3
    assert nearest_rank([5, 1, 3], 0.99) == 5

    assert distribution([0.3, 0.123456, 0.2]) == [0.1235, 0.2, 0.3]
    assert distribution([7]) == [7.0]
    assert distribution([]) == []


@given(st.lists(finite, min_size=MOST_KEPT + 1, max_size=500))
def test_that_of_many_are_observed_quantiles_at_even_steps_with_both_ends(values: list[float]) -> None:
    found = distribution(values)
    below, above = (
        [float(f"{value:.4g}") for value in numpy.quantile(values, numpy.linspace(0, 1, MOST_KEPT), method=method)]
        for method in ("lower", "higher")
    )

    assert found == sorted(found)
    assert len(found) == MOST_KEPT
    assert (found[0], found[-1]) == (float(f"{min(values):.4g}"), float(f"{max(values):.4g}"))
    assert all(low <= value <= high for low, value, high in zip(below, found, above, strict=True))


def test_parts_of_an_iteration_and_what_is_unaccounted_are_the_whole() -> None:
    parts = [
        Breakdown(path=["forward"], times_s=[0.2, 0.3]),
        Breakdown(path=["backward"], times_s=[0.5, 0.4]),
        Breakdown(path=["backward", "communication"], times_s=[0.4, 0.1]),
        Breakdown(path=["evaluation"], times_s=[7.0, 7.0], is_apart=True),
    ]
    assert Breakdown(times_s=[1.0, 1.1], parts=parts).unaccounted_s == pytest.approx([0.3, 0.4])

    assert BUSY.time_s == pytest.approx(0.2)
    assert BUSY.share == pytest.approx(0.5)

    base = {"HEAD (1)": {"other": BUSY}}
    assert CaseTrace(sides={**base, CANDIDATE: {"step": BUSY}}).busy == {"step": BUSY}
    assert CaseTrace(sides=base).busy == {}

    assert iteration_name('step[kind="a\\b"]', 3) == "step[kind='a/b'] #3"


BUSY = BusyCommunication(ranks_s=[0.1, 0.3], totals_s={"all_reduce": 0.2}, iterations=10, iteration_s=0.4)
