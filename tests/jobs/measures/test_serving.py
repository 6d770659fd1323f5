"""What a serving showed, from the timeline of a pool that never ran."""

from __future__ import annotations

import pytest
from support.metrics import rule
from support.pools import SERVED, launch_of, served

from pytest_distbench.jobs.measures.pool import measure_pool
from pytest_distbench.judging.entry import stored_metric
from pytest_distbench.judging.metric import judge
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.pool import PoolResult
from pytest_distbench.records.pool_timeline import Answered


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


EMPTY = {0: (14.1, 14.0), 1: (14.3, 14.2), 2: (15.1, 15.0)}
LATE = {0: (14.1, 12.6), 1: (14.2, 13.2), 2: (15.1, 15.0)}
FULL = {0: (14.6, 12.1), 1: (15.2, 12.4), 2: (15.7, 12.8)}
"""Three histories of the same code: when each request was answered, and was due."""


def of_history(history: dict[int, tuple[float, float]], busy_s: float) -> dict[str, Measurement]:
    lines, jobs = served()
    others = [line for line in lines if not isinstance(line, Answered)]
    answers = [
        Answered(t=t + busy_s, number=number, intended_t=due, slot=1, busy_s=busy_s)
        for number, (t, due) in history.items()
    ]
    _, measurements = measure_pool(SERVED, sorted([*others, *answers], key=lambda line: line.t), jobs)
    return {m.key: m for m in measurements}


@pytest.mark.parametrize("stored", [EMPTY, LATE, FULL])
@pytest.mark.parametrize("now", [EMPTY, LATE, FULL])
@pytest.mark.parametrize(("busy_s", "fails"), [(0.1, []), (0.15, ["answer_time"])])
def test_a_queue_that_is_empty_or_not_fails_nothing_and_longer_answers_do(
    stored: dict[int, tuple[float, float]], now: dict[int, tuple[float, float]], busy_s: float, fails: list[str]
) -> None:
    before, after = of_history(stored, 0.1), of_history(now, busy_s)
    verdicts = [
        judge([m] * 5, stored_metric([before[key]] * 5, tolerance=None), rule()).verdict for key, m in after.items()
    ]

    assert [v.metric for v in verdicts if v.kind == "regressed"] == fails


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
