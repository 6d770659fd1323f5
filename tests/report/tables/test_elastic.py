"""The tables of elastic jobs: the summary, and changes with their parts."""

from __future__ import annotations

import pytest
from support.results import result
from support.timelines import JOB, Timeline, killed

from pytest_distbench.jobs.measures.measure import measure
from pytest_distbench.records.elastic import MembershipPlan
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.tables.elastic import EVENTS, JOBS
from pytest_distbench.report.tables.table import Section


def case(timeline: Timeline, name: str, plan: str) -> CaseResult:
    from pytest_distbench.elastic import kill

    job = replace(JOB, plan=MembershipPlan(changes=[kill(at_s=9.5)]) if plan else MembershipPlan())
    elastic, measurements = measure(job, timeline.history)
    launch = LaunchRecord(index=0, outcome="passed", wall_s=20.0, elastic=elastic, measurements=measurements)
    made = result(launches=[launch])
    return replace(made, case=replace(made.case, id=name))


@pytest.fixture
def results() -> list[CaseResult]:
    """A run of three epochs on two nodes, and one that lost a node."""
    fixed = Timeline()
    fixed.begin(8.0, 0, 1)
    fixed.generation(0, [0, 1], first=11.0, steps=9)
    fixed.finish(19.5, 0, 0, 1)
    return [case(fixed, "ws2:fixed", ""), case(killed(), "ws2:cycle", "kill"), result()]


def rows(section: Section) -> list[dict[str, object]]:
    return [dict(zip(section.columns, (cell.value for cell in row), strict=True)) for row in section.rows]


def test_a_change_has_its_cost_and_where_it_went(results: list[CaseResult]) -> None:
    [row] = rows(EVENTS.section(results))

    assert (row["kind"], row["before"], row["after"], row["stall_s"], row["steps_redone"]) == ("kill", 2, 1, 5.0, 4)
    assert row["detect_s"] == pytest.approx(3.0)
    assert "kill of slot 1" in EVENTS.section(results).texts[0]


def test_a_launch_has_its_setup_time_and_quality(results: list[CaseResult]) -> None:
    fixed, cycled = rows(JOBS.section(results))

    assert (fixed["setup"], cycled["setup"]) == ("1:0", "1:1 (kill(at_s=9.5))")
    assert (cycled["epochs"], cycled["seconds"], cycled["start_s"], cycled["accuracy"]) == (3, 17.0, 3.0, None)
    assert cycled["lost_fraction"] == pytest.approx(5 / 16.5)
