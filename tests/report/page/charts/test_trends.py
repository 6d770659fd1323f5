"""The way of a metric over many runs."""

from __future__ import annotations

from support.trends import steps, trend

from pytest_distbench.judging.change_points import change_points
from pytest_distbench.records.trend import History
from pytest_distbench.report.page.charts.trends import trend_chart, trends_of


def test_each_run_is_a_dot_with_its_day_and_commit_and_each_level_a_line() -> None:
    values = steps(20, 1.0, 1.2, 3.0)
    chart = trend_chart(trend(values), change_points(values))
    runs, level = chart.series

    assert (runs.points[0], runs.names[0], runs.look) == ((1, 1.0), "2026-01-01 cccccccc00", "dots")
    assert level.points == [(1, 1.0), (21, 1.2), (41, 3.0)]
    assert level.labels == ["", "+20.0 %", "+150.0 %"]


def test_what_did_not_change_has_no_levels() -> None:
    assert [series.name for series in trend_chart(trend(steps(5, 1.0)), []).series] == ["a run"]


def test_the_trends_of_a_case_are_found_by_where_and_what_it_is() -> None:
    first, second = trend([1.0]), trend([2.0], metric="other")

    assert trends_of(History(records=1, trends=[first, second])) == {
        ("cpu-x", "suites/test_a.py::test_a", "ws2.gloo.warm"): [first, second]
    }
    assert trends_of(None) == {}
