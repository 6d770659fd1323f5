"""From the timelines of a pool and its jobs to what one launch measured. Pure."""

from __future__ import annotations

import pytest
from support.pools import POOL, SERVED, launch_of, served, shared
from support.timelines import JOB, Timeline

from pytest_distbench.jobs.measures.pool import measure_pool
from pytest_distbench.records.elastic import PoolJob, PoolResult, Sharing
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.timeline import ClockBegan, PoolLine


def test_a_demand_has_a_latency_once_its_server_is_ready() -> None:
    found = {m.key: m.value for m in launch_of(SERVED).measurements}
    assert (found["preempt_latency"], found["serving_ready"]) == (0.5, 2.0)

    lines, jobs = served()
    _, measurements = measure_pool(SERVED, lines[:6], jobs)
    found = {m.key: m.value for m in measurements}
    assert (found["preempt_latency"], found["serving_ready"]) == (None, None)

    # Three seconds of it, of two slots over 22 s: the training's steps are 1 s each, 3 of two and 15 of one
    found = {m.key: m.value for m in launch_of(SERVED).measurements}
    lines, jobs = served()
    _, without = measure_pool(SERVED, [line for line in lines if type(line).__name__ != "ServerReady"], jobs)
    idle = {m.key: m.value for m in without}
    assert round(((found["productive"] or 0) - (idle["productive"] or 0)) * 2 * 22, 6) == 3.0


def test_a_row_for_each_stretch_in_which_slots_and_demand_were_the_same() -> None:
    pool = launch_of(SERVED).pool
    assert pool is not None

    assert [(m.begin_s, m.end_s, m.wanted, m.serving, m.training) for m in pool.stretches] == [
        (0.0, 2.0, 0, 0, 2),
        (2.0, 2.5, 1, 0, 2),
        (2.5, 4.0, 1, 1, 1),
        (4.0, 6.0, 1, 1, 1),
        (6.0, 7.0, 0, 1, 1),
        (7.0, 20.0, 0, 0, 1),
    ]


def values(launch: LaunchRecord) -> dict[str, float | None]:
    return {m.key: m.value for m in launch.measurements}


def result(launch: LaunchRecord) -> PoolResult:
    assert launch.pool is not None
    return launch.pool


@pytest.mark.parametrize(
    ("spans", "gap"),
    [
        ([(0.0, 20.0), (3.0, 9.0)], 0.0),
        ([(0.0, 8.0), (1.0, 8.0), (2.0, 3.0)], 0.0),
        ([(0.0, 30.0), (12.0, 13.0), (14.0, 15.0)], 0.0),
        ([(0.0, 5.0), (4.0, 6.0), (7.5, 9.0)], 1.5),
    ],
    ids=["inside another", "together to the end", "two inside one", "after two that overlap"],
)
def test_no_gap_is_less_than_none(spans: list[tuple[float, float]], gap: float) -> None:
    """Of jobs whose generations train at the same time, in the middle of one another too."""
    lines: list[PoolLine] = [ClockBegan(t=spans[0][0])]
    jobs = {}
    for slot, (begin, end) in enumerate(spans):
        job = Timeline()
        job.begin(begin, slot)
        job.generation(0, [slot], first=begin, steps=2, step_s=end - begin)
        jobs[f"job{slot}"] = job.lines
    pool = Sharing(slots=len(spans), policy="gang", jobs=[PoolJob(name=name, submit_s=0, job=JOB) for name in jobs])
    found, _ = measure_pool(pool, lines, jobs)
    assert found is not None

    assert found.idle_gap_s == gap


def test_slots_are_held_until_they_are_free_or_the_pool_ends() -> None:
    # A's last step is at 19 s, B's at 29 s; their last slots are free half a second and a second later
    found = values(launch_of(POOL))
    assert (found["slots_kept[job=A]"], found["slots_kept[job=B]"]) == (0.5, 1.0)

    # A has 11.5 s of a slot, B 17.5 and 10; of use are 10, 6 and twice 6 steps of a second
    found = values(launch_of(POOL))
    assert found["allocated"] == pytest.approx(39 / 44)
    assert found["productive"] == pytest.approx(28 / 44)

    holds = [(hold.slot, hold.owner, hold.begin_s, hold.end_s) for hold in result(launch_of(POOL)).holds]
    assert holds == [(0, "A", -2.0, 9.5), (1, "B", 2.0, 19.5), (0, "B", 10.0, 20.0)]

    lines, jobs = shared()
    found, _ = measure_pool(POOL, lines[:5], jobs)
    assert found is not None
    assert [hold.end_s for hold in found.holds] == [19.0, 19.0]  # of the last step
    assert [job.ended_s for job in found.jobs] == [None, None]

    lines, _ = shared()
    assert measure_pool(POOL, lines[:2], {"A": [], "B": []}) == (None, [])


def test_times_of_a_pool_and_its_jobs() -> None:
    """A queue is left with the first step, not with the slot."""
    found = values(launch_of(POOL))

    assert found["makespan"] == 22.0
    assert (found["queue_wait[job=A]"], found["jct[job=A]"]) == (2.0, 11.5)
    assert (found["queue_wait[job=B]"], found["jct[job=B]"]) == (3.0, 18.0)
    assert found["idle_gap"] == 4.0  # from 20 s, when B's only worker stopped, to 24 s


def test_workers_over_time_and_what_a_job_measured_itself() -> None:
    launch = launch_of(POOL)
    a, b = result(launch).jobs

    assert a.workers == [(0.0, 1)]
    assert b.workers == [(5.0, 1), (14.0, 2)]
    assert values(launch)["most_workers[job=B]"] == 2
    assert values(launch)["stall[change=join 1 to 2,job=B]"] == 4.0
    assert values(launch)["samples_per_second[job=B,nodes=2]"] == 4.0
