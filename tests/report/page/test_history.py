"""The page of many runs: what became worse stands first."""

from __future__ import annotations

from support.trends import steps, trend

from pytest_distbench.judging.change_points import change_points
from pytest_distbench.records.trend import History, Trend
from pytest_distbench.report.page.content import Page
from pytest_distbench.report.page.history import page_of_history
from pytest_distbench.report.tables.trends import TrendRow


def page(*trends: Trend) -> Page:
    rows = [
        TrendRow(trend=one, change=change)
        for one in trends
        for change in change_points([point.value for point in one.points]) or [None]
    ]
    return page_of_history(History(records=40, trends=[*trends]), rows, name="runs", notes=["a note"])


def test_what_became_worse_stands_first_with_its_commits_and_its_command() -> None:
    slower, faster = trend(steps(20, 1.0, 1.5), case="slow"), trend(steps(20, 1.0, 0.5), case="fast")
    found = page(trend(steps(20, 1.0, 1.0), case="same"), faster, slower)

    assert [case.state for case in found.cases] == ["worse", "better", "steady"]
    assert [case.is_first for case in found.cases] == [True, False, False]
    assert found.counts == {"worse": 1, "better": 1, "steady": 1}
    assert found.cases[0].headline == (
        "step: 1 s -> 1.5 s (+50.0 %), worse since 2026-01-21, between cccccccc19 and cccccccc20"
    )
    assert found.cases[0].command.startswith("git bisect start cccccccc20 cccccccc19 && git bisect run ")
    assert found.cases[2].command == found.cases[2].headline == ""


def test_the_metrics_of_a_case_are_one_card_the_worse_before_the_others() -> None:
    worse, better = (trend(steps(20, 1.0, level), metric=name) for name, level in (("b", 1.2), ("a", 0.3)))
    [case] = page(better, worse).cases

    assert [chart.title for chart in case.charts] == ["History of b", "History of a"]
    assert case.story[:-1] == ["a: 1 s -> 300 ms (-70.0 %), better since 2026-01-21, between cccccccc19 and cccccccc20"]
