"""The tables of charts, and numbers of charts."""

from __future__ import annotations

import pytest
from support.results import point, result

from pytest_distbench.report.page import points, short
from pytest_distbench.report.page.charts import OF_CASE, charts_of


def test_a_sweep_has_its_charts_in_the_order_of_the_table() -> None:
    charts, problems = charts_of(result(point(1024), point(4096)), {})

    assert [chart.title for chart in charts] == ["Bus bandwidth by message size", "Time as % of the baseline"]
    assert problems == []


def test_one_that_cannot_be_made_is_told_and_the_others_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OF_CASE, "epochs", lambda given: 1 / 0)
    charts, problems = charts_of(result(point(1024), point(4096)), {})

    assert len(charts) == 2
    assert problems == ["the chart 'epochs' cannot be made: ZeroDivisionError: division by zero"]


def test_a_point_without_a_value_is_left_out_and_others_have_four_digits() -> None:
    assert points([(1, 0.123456), (2, None), (3, 0.0)]) == [(1.0, 0.1235), (3.0, 0.0)]
    assert short(123456) == 123500.0
