"""What a serving showed, from the timeline of a pool that never ran."""

from __future__ import annotations

import pytest
from support.pools import SERVED, launch_of, served

from pytest_distbench.jobs.measures.pool import measure_pool
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.pool import PoolResult


def values(launch: LaunchRecord) -> dict[str, float | None]:
    return {m.key: m.value for m in launch.measurements}


def result(launch: LaunchRecord) -> PoolResult:
    assert launch.pool is not None
    return launch.pool


def test_latencies_count_from_when_a_request_was_due() -> None:
    found = values(launch_of(SERVED))

    assert found["p50_latency[demand=1/s from 2 s]"] == pytest.approx(1.0)
    assert found["p95_latency[demand=1/s from 2 s]"] == pytest.approx(1.45)
    assert "p95_latency[demand=0/s from 6 s]" not in found
    assert found["requests"] == 3


def test_what_an_answer_takes_is_told_apart_from_what_requests_wait_for() -> None:
    """Latencies are mostly the replica's start here: 1.5 s and 1 s, of which the replica computed 0.1 s."""
    [answer] = [m for m in launch_of(SERVED).measurements if m.name == "answer_time"]

    assert (answer.value, answer.unit, answer.better) == (pytest.approx(0.1), "s", "lower")


def test_how_soon_slots_were_free_and_the_serving_ready() -> None:
    found = values(launch_of(SERVED))

    assert (found["preempt_latency"], found["serving_ready"]) == (0.5, 2.0)


def test_a_demand_that_was_never_met_has_no_latency() -> None:
    lines, jobs = served()
    _, measurements = measure_pool(SERVED, lines[:6], jobs)
    found = {m.key: m.value for m in measurements}

    assert (found["preempt_latency"], found["serving_ready"]) == (None, None)


def test_requests_without_an_answer_are_beyond_a_bound_where_the_demand_is_over() -> None:
    [unanswered] = [m for m in launch_of(SERVED).measurements if m.name == "requests_unanswered"]

    assert [bound.value for bound in unanswered.bounds] == [0]


def test_a_row_for_each_stretch_in_which_slots_and_demand_were_the_same() -> None:
    found = [
        (m.begin_s, m.end_s, m.per_s, m.serving, m.training, m.requests) for m in result(launch_of(SERVED)).stretches
    ]

    assert found == [
        (0.0, 2.0, 0.0, 0, 2, 0),
        (2.0, 2.5, 1.0, 0, 2, 0),
        (2.5, 4.0, 1.0, 1, 1, 2),
        (4.0, 6.0, 1.0, 1, 1, 1),
        (6.0, 7.0, 0.0, 1, 1, 0),
        (7.0, 20.0, 0.0, 0, 1, 0),
    ]
