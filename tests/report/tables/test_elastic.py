"""The tables of elastic jobs: rows that sum up, epochs beside a fixed run's, changes with their parts."""

from __future__ import annotations

import pytest
from support.results import result
from support.timelines import JOB, Timeline, killed

from pytest_distbench.jobs.measures.measure import measure
from pytest_distbench.records.elastic import MembershipPlan
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.tables.elastic import EPOCHS, EVENTS, JOBS, RATES, WORKERS
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


def test_an_epoch_stands_beside_that_of_the_fixed_run(results: list[CaseResult]) -> None:
    found = {row["epoch"]: row for row in rows(EPOCHS.section(results)) if row["test"] and row["fixed_s"] is not None}

    assert (found["2"]["seconds"], found["2"]["fixed_s"], found["2"]["difference_s"]) == (11.5, 3.0, 8.5)
    assert (found["2"]["nodes"], found["2"]["changes"], found["2"]["stall_s"]) == ("1", "kill to 1", 5.0)


def test_the_rows_of_a_launch_sum_up_to_its_total(results: list[CaseResult]) -> None:
    told = [row for row in rows(EPOCHS.section(results)) if row["fixed_s"] is not None]
    *parts, total = [row["seconds"] for row in told]

    assert [row["epoch"] for row in told] == ["start", "0", "1", "2", "end", "unaccounted", "total"]
    assert sum(parts) == pytest.approx(total)  # type: ignore[arg-type]
    assert total == 20.0


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


def test_a_worker_is_a_slot_in_a_generation_with_its_moments(results: list[CaseResult]) -> None:
    *_, last = rows(WORKERS.section(results))

    assert (last["generation"], last["slot"], last["rank"], last["steps"], last["resumed_at"]) == (1, 0, 0, 6, 6)
    assert [last[name] for name in ("process_s", "imported_s", "joined_s", "loaded_s")] == pytest.approx(
        [13.0, 13.3, 13.6, 13.8]
    )
    assert (last["first_step_s"], last["last_step_s"]) == (14.0, 16.5)


@pytest.mark.parametrize(
    ("series", "changes"),
    [
        ([0.1, 0.1, 0.2, 0.2, 0.1], [(1, 0.1), (3, 0.2), (5, 0.1)]),
        ([0.1], [(1, 0.1)]),
        ([1.0, 0.5, 0.25], [(1, 1.0), (2, 0.5), (3, 0.25)]),
    ],
)
def test_a_training_that_records_its_rate_has_the_steps_from_which_on_it_is_another(
    series: list[float], changes: list[tuple[int, float]]
) -> None:
    """The first seed of the first launch that has one: a schedule is no matter of chance."""
    rate = Measurement(name="learning_rate", unit="", better="info", value=series[-1], series=series, at={"seed": 0})
    again = replace(rate, series=[9.0], at={"seed": 1})
    launch = LaunchRecord(index=0, outcome="passed", wall_s=1.0, measurements=[rate, again])
    found = rows(RATES.section([result(launches=[launch, launch])]))

    assert [(row["step"], row["lr"]) for row in found] == changes
    assert {row["nodes"] for row in found} == {2}
