"""Quantiles of a series agree with numpy's."""

from __future__ import annotations

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_distbench.records.summaries import MOST_KEPT, distribution, nearest_rank, quantile

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
