"""Quantiles of a series agree with numpy's."""

from __future__ import annotations

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_distbench.records.quantiles import nearest_rank, quantile

finite = st.floats(-1e6, 1e6)


@given(st.lists(finite, min_size=1, max_size=40), st.floats(0, 1))
def test_quantile_is_numpys(values: list[float], q: float) -> None:
    assert quantile(values, q) == pytest.approx(numpy.quantile(values, q), rel=1e-9, abs=1e-6)


def test_nearest_rank_is_an_observed_value() -> None:
    assert nearest_rank([5, 1, 3], 0.5) == 3
    assert nearest_rank([5, 1, 3], 0.99) == 5
