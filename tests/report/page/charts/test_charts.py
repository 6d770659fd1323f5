"""The tables of charts."""

from __future__ import annotations

import pytest
from support.results import point, result, verdict

from pytest_distbench.report.page.charts import OF_CASE, OF_RUN, charts_above, charts_of
from pytest_distbench.report.tables import TABLES


def test_a_sweep_has_its_charts_in_the_order_of_the_table() -> None:
    charts, problems = charts_of(result(point(1024), point(4096)), {})

    assert [chart.title for chart in charts] == ["Bus bandwidth by message size", "Time as % of the baseline"]
    assert problems == []


def test_one_that_cannot_be_made_is_told_and_the_others_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OF_CASE, "epochs", lambda given: 1 / 0)
    charts, problems = charts_of(result(point(1024), point(4096)), {})

    assert len(charts) == 2
    assert problems == ["the chart 'epochs' cannot be made: ZeroDivisionError: division by zero"]


def test_charts_of_a_run_stand_above_tables_that_there_are() -> None:
    assert OF_RUN.keys() <= TABLES.keys()
    assert charts_above("verdicts", [result(verdict())]) == ([], [])
