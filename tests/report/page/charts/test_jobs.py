"""Charts of elastic jobs and pools."""

from __future__ import annotations

import pytest
from support.pools import POOL, SERVED, launch_of
from support.results import result
from support.timelines import JOB, killed

from pytest_distbench.jobs.measures.measure import measure
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.pool import SERVING
from pytest_distbench.report.page.chart import Lines, Spans
from pytest_distbench.report.page.charts.jobs import MOST_TIMELINES, elastic, pool, serving


def lost_a_node(launches: int) -> list[LaunchRecord]:
    found, _ = measure(JOB, killed().history)
    return [LaunchRecord(index=i, outcome="passed", wall_s=20.0, elastic=found) for i in range(launches)]


def test_a_row_per_slot_shows_its_workers_then_come_stalls_and_epochs() -> None:
    [chart] = elastic(result(launches=lost_a_node(1)))

    assert isinstance(chart, Spans)
    assert chart.title == "Nodes over time"
    assert chart.rows == ["slot 0", "slot 1", "stalls", "epochs"]
    assert {what for row, _, _, what in chart.spans if row == 1} >= {"train on 2"}
    assert [what for row, _, _, what in chart.spans if row == 2] == ["stall"]
    assert chart.marks[0][1] == "kill of slot 1"
    assert all(end >= begin for _, begin, end, _ in chart.spans)


def test_of_many_launches_the_first_are_drawn() -> None:
    titles = [chart.title for chart in elastic(result(launches=lost_a_node(MOST_TIMELINES + 2)))]

    assert titles == [f"Nodes over time, launch {number}" for number in range(1, MOST_TIMELINES + 1)]


def test_a_pool_shows_who_has_which_slot() -> None:
    [chart] = pool(result(launches=[launch_of(POOL)]))

    assert isinstance(chart, Spans)
    assert chart.rows == ["slot 0", "slot 1"]
    assert {what for *_, what in chart.spans} == {"A has it", "A trains", "B has it", "B trains"}
    assert (0, 0, 9, "A trains") in [(slot, round(begin), round(end), what) for slot, begin, end, what in chart.spans]
    assert [what for _, what in chart.marks] == ["A asks for slots", "B asks for slots"]


def test_a_serving_shows_who_had_slots_over_time() -> None:
    made = result(launches=[launch_of(SERVED)])
    [chart] = serving(made)

    assert isinstance(chart, Lines)
    assert {series.name: [y for _, y in series.points] for series in chart.series} == {
        "wanted by the serving": [0, 1, 1, 1, 0, 0],
        "serving": [0, 0, 1, 1, 1, 0],
        "training": [2, 2, 1, 1, 1, 1],
    }
    assert {series.look for series in chart.series} == {"steps"}
    assert {f"{SERVING} has it", f"{SERVING} is ready"} <= {
        what for chart in pool(made) if isinstance(chart, Spans) for *_, what in chart.spans
    }


@pytest.mark.parametrize("charts", [elastic, pool, serving])
def test_what_has_no_job_has_no_chart(charts: object) -> None:
    assert not list(charts(result()))  # type: ignore[operator]
