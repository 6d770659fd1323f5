"""The tables and charts of elastic jobs and of pools of them."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from support.pools import POOL, SERVED, launch_of
from support.results import result, run
from support.timelines import JOB, Timeline, killed

from pytest_distbench.elastic import tables
from pytest_distbench.elastic.measures import measure
from pytest_distbench.elastic.records import SERVING, pool_of
from pytest_distbench.elastic.tables import EVENTS, JOBS, POOLS, elastic_charts, write_trace
from pytest_distbench.errors import DistbenchError
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.tables import RECORD
from pytest_distbench.report.tables.table import DataTable


def case(timeline: Timeline, name: str, plan: str) -> CaseResult:
    from pytest_distbench.elastic import kill

    job = replace(JOB, plan=[kill(at_s=9.5)] if plan else [])
    elastic, measurements = measure(job, timeline.history)
    launch = LaunchRecord(index=0, outcome="passed", wall_s=20.0, events=elastic, measurements=measurements)
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


def rows(section: DataTable) -> list[dict[str, object]]:
    return [dict(zip(section.columns, row, strict=True)) for row in section.rows]


def test_a_launch_and_a_change_have_their_cost_and_quality(results: list[CaseResult]) -> None:
    [row] = rows(EVENTS.table(results))
    assert (row["kind"], row["before"], row["after"], row["stall_s"], row["steps_redone"]) == ("kill", 2, 1, 5.0, 4)
    assert row["detect_s"] == pytest.approx(3.0)
    assert "kill of slot 1" in EVENTS.table(results).texts[0]

    fixed, cycled = rows(JOBS.table(results))
    assert (fixed["setup"], cycled["setup"]) == ("1:0", "1:1 (kill(at_s=9.5))")
    assert (cycled["epochs"], cycled["seconds"], cycled["start_s"], cycled["accuracy"]) == (3, 17.0, 3.0, None)
    assert cycled["lost_fraction"] == pytest.approx(5 / 16.5)


@pytest.fixture
def results_of_pool() -> list[CaseResult]:
    """Two jobs that share, a training that yields, and a case without a pool."""
    return [result(launches=[launch_of(POOL)]), result(launches=[launch_of(SERVED)]), result()]


def test_a_pool_has_a_row_per_job_and_per_stretch_of_its_serving(results_of_pool: list[CaseResult]) -> None:
    _, row, _ = rows(POOLS.table(results_of_pool))
    assert (row["policy"], row["job"]) == ("elastic", "B")
    assert (row["submitted_s"], row["started_s"], row["ended_s"]) == (2.0, 5.0, 20.0)
    assert (row["queue_wait_s"], row["jct_s"]) == (3.0, 18.0)
    assert row["workers"] == "1 from 5.0, 2 from 14.0"
    assert (row["makespan_s"], row["idle_gap_s"]) == (22.0, 4.0)

    launch = launch_of(POOL, recorded_as=replace(POOL, slots=6, compute="synthetic", cores=2))
    assert rows(POOLS.table([result(launches=[launch])]))[0]["policy"] == ("elastic, synthetic, 6 slots on 2 cores")

    section = tables.SERVINGS.table(results_of_pool)
    names = ("begin_s", "wanted", "serving", "training", "total", "capacity")
    found = [tuple(row[name] for name in names) for row in rows(section)]
    assert found[1:4] == [(2.0, 1, 0, 2, 2, 2), (2.5, 1, 1, 1, 2, 2), (4.0, 1, 1, 1, 2, 2)]
    assert section.footer == ["at 2.00 s 1 more requested: slots free after 500 ms, serving ready after 2 s"]
    told = [row[-2] for row in JOBS.table(results_of_pool).texts]

    assert told == ["test_a[ws2 A]", "test_a[ws2 B]", "test_a[ws2 train]"]
    [joined, left] = rows(EVENTS.table(results_of_pool))
    assert (joined["kind"], joined["stall_s"], left["kind"], left["stall_s"]) == ("join", 4.0, "leave", 3.0)


def test_the_picture_has_a_line_per_slot() -> None:
    """22 s in 72 columns: 3.3 a second."""
    pool = pool_of(launch_of(POOL).events)
    assert pool is not None
    first, second, _, legend = tables.picture(pool)

    assert first == "slot 0 " + "-" * 7 + "A" * 29 + "-" * 2 + "." * 1 + "-" * 13 + "B" * 17 + "-" * 3
    assert second.startswith("slot 1 " + "." * 13 + "-" * 10 + "B" * 16)
    assert legend == "A: A, B: B; -: owned, without a step; .: free"


def test_the_trace_of_a_pool_has_who_had_a_slot_and_what_ran_in_it(results_of_pool: list[CaseResult]) -> None:
    out = io.BytesIO()
    write_trace(run(*results_of_pool), out)
    events = json.loads(out.getvalue())["traceEvents"]
    spans = [(e["name"], e["tid"], e["ts"] / 1e6, e["dur"] / 1e6) for e in events if e["ph"] == "X" and e["pid"] == 1]

    assert ("B", 0, 12.0, 10.0) in spans
    assert ("B: train on 2", 0, 16.0, 5.0) in spans
    assert ("A: train on 1", 0, 2.0, 9.0) in spans
    assert [e["name"] for e in events if e["ph"] == "i" and e["pid"] == 1] == ["B: join"]


@pytest.fixture
def events() -> list[dict[str, Any]]:
    """Events of two launches of a job that lost a node."""
    elastic, _ = measure(JOB, killed().history)
    launches = [LaunchRecord(index=i, outcome="passed", wall_s=20.0, events=elastic) for i in (0, 1)]
    out = io.BytesIO()
    write_trace(run(result(), result(launches=launches)), out)
    found: list[dict[str, Any]] = json.loads(out.getvalue())["traceEvents"]
    return found


def test_a_trace_has_a_process_per_launch_and_a_row_per_slot(events: list[dict[str, Any]]) -> None:
    names = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {1: "test_a[ws2], launch 1", 2: "test_a[ws2], launch 2"}

    spans = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"], e["args"]["generation"]) == (1, 0, 1)]
    assert [e["name"] for e in spans] == ["import", "group init", "build and load", "first step", "train on 1"]
    assert [e["ts"] for e in spans] == pytest.approx([16.0e6, 16.3e6, 16.6e6, 16.8e6, 17.0e6])
    assert [e["dur"] for e in spans] == pytest.approx([0.3e6, 0.3e6, 0.2e6, 0.2e6, 2.5e6])

    [change, _] = [event for event in events if event["ph"] == "i"]
    assert (change["name"], change["tid"], change["ts"]) == ("kill", 1, 12.5e6)


def lost_a_node(launches: int) -> list[LaunchRecord]:
    found, _ = measure(JOB, killed().history)
    return [LaunchRecord(index=i, outcome="passed", wall_s=20.0, events=found) for i in range(launches)]


def test_slots_are_drawn_with_their_workers_of_jobs_pools_and_servings() -> None:
    [chart] = elastic_charts(result(launches=lost_a_node(1)))
    assert chart["type"] == "spans"
    assert chart["title"] == "Nodes over time"
    assert chart["rows"] == ["slot 0", "slot 1", "stalls", "epochs"]
    assert {what for row, _, _, what in chart["spans"] if row == 1} >= {"train on 2"}
    assert [what for row, _, _, what in chart["spans"] if row == 2] == ["stall"]
    assert chart["marks"][0][1] == "kill of slot 1"
    assert all(end >= begin for _, begin, end, _ in chart["spans"])

    titles = [chart["title"] for chart in elastic_charts(result(launches=lost_a_node(tables.MOST_TIMELINES + 2)))]
    assert titles == [f"Nodes over time, launch {number}" for number in range(1, tables.MOST_TIMELINES + 1)]

    [chart] = tables.pool_charts(result(launches=[launch_of(POOL)]))
    assert chart["type"] == "spans"
    assert chart["rows"] == ["slot 0", "slot 1"]
    assert {what for *_, what in chart["spans"]} == {"A has it", "A trains", "B has it", "B trains"}
    assert (0, 0, 9, "A trains") in [
        (slot, round(begin), round(end), what) for slot, begin, end, what in chart["spans"]
    ]
    assert [what for _, what in chart["marks"]] == ["A asks for slots", "B asks for slots"]

    made = result(launches=[launch_of(SERVED)])
    [chart] = tables.serving_charts(made)
    assert chart["type"] == "lines"
    assert {series["name"]: [y for _, y in series["points"]] for series in chart["series"]} == {
        "wanted by the serving": [0, 1, 1, 1, 0, 0],
        "serving": [0, 0, 1, 1, 1, 0],
        "training": [2, 2, 1, 1, 1, 1],
    }
    assert {series.get("look", "") for series in chart["series"]} == {"steps"}
    assert {f"{SERVING} has it", f"{SERVING} is ready"} <= {
        what for chart in tables.pool_charts(made) if chart["type"] == "spans" for *_, what in chart["spans"]
    }


def test_a_run_without_an_elastic_job_has_no_timeline() -> None:
    with pytest.raises(DistbenchError, match="has no elastic job, and --format trace writes the timelines of these"):
        write_trace(run(result()), io.BytesIO())


def test_the_record_of_an_experiment_has_the_schedule_of_its_job() -> None:
    made = run(result(launches=[replace(result().launches[0], events=measure(JOB, killed().history)[0])]))
    [row] = RECORD.table(made.results, {"run": made}).texts
    assert f"{JOB.nodes} nodes, {JOB.start} at the start, {JOB.planned}" in row
