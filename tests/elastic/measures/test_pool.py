"""What one launch measured, computed from the timelines of a pool and its jobs; and the timelines themselves. Pure."""

from __future__ import annotations

import pytest
from support.pools import POOL, SERVED, launch_of, served, shared
from support.timelines import JOB, Timeline, but, killed

from pytest_distbench.elastic.measures import history as module
from pytest_distbench.elastic.measures import measure_pool
from pytest_distbench.elastic.measures.history import History, change_results, epoch_results, rate_changes, rates_at
from pytest_distbench.elastic.records import PoolRun, Sharing, event, pool_of
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.record import replace
from pytest_distbench.records.wire import Event


def test_a_demand_has_a_latency_once_its_server_is_ready() -> None:
    ready = {m.key: m.value for m in launch_of(SERVED).measurements}
    assert (ready["preempt_latency"], ready["serving_ready"]) == (0.5, 2.0)

    lines, jobs = served()
    _, measurements = measure_pool(SERVED, lines[:6], jobs)
    found = {m.key: m.value for m in measurements}
    assert (found["preempt_latency"], found["serving_ready"]) == (None, None)

    # Three seconds of it, of two slots over 22 s: the training's steps are 1 s each, 3 of two and 15 of one
    _, without = measure_pool(SERVED, [line for line in lines if line.what != "server_ready"], jobs)
    idle = {m.key: m.value for m in without}
    assert round(((ready["productive"] or 0) - (idle["productive"] or 0)) * 2 * 22, 6) == 3.0


def test_a_row_for_each_stretch_in_which_slots_and_demand_were_the_same() -> None:
    pool = pool_of(launch_of(SERVED).events)
    assert pool is not None

    assert [(m.t, m.end_s, m.wanted, m.serving, m.training) for m in pool.stretches] == [
        (0.0, 2.0, 0, 0, 2),
        (2.0, 2.5, 1, 0, 2),
        (2.5, 4.0, 1, 1, 1),
        (4.0, 6.0, 1, 1, 1),
        (6.0, 7.0, 0, 1, 1),
        (7.0, 20.0, 0, 0, 1),
    ]


def values(launch: LaunchRecord) -> dict[str, float | None]:
    return {m.key: m.value for m in launch.measurements}


def result(events: list[Event]) -> PoolRun:
    pool = pool_of(events)
    assert pool is not None
    return pool


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
    """The generations of the jobs train at the same time, also one within another."""
    lines: list[Event] = [event("clock_began", t=spans[0][0])]
    jobs = {}
    for slot, (begin, end) in enumerate(spans):
        job = Timeline()
        job.begin(begin, slot)
        job.generation(0, [slot], first=begin, steps=2, step_s=end - begin)
        jobs[f"job{slot}"] = job.lines
    pool = Sharing(slots=len(spans), policy="gang", jobs=[replace(JOB, name=name, submit_s=0) for name in jobs])
    found, _ = measure_pool(pool, lines, jobs)

    assert result(found).summary.idle_gap_s == gap


def test_slots_are_held_until_they_are_free_or_the_pool_ends() -> None:
    # A's last step is at 19 s, B's at 29 s; their last slots are free half a second and a second later
    found = values(launch_of(POOL))
    assert (found["slots_kept[job=A]"], found["slots_kept[job=B]"]) == (0.5, 1.0)

    # A has 11.5 s of a slot, B 17.5 and 10; of use are 10, 6 and twice 6 steps of a second
    assert found["allocated"] == pytest.approx(39 / 44)
    assert found["productive"] == pytest.approx(28 / 44)

    holds = [(hold.slot, hold.owner, hold.t, hold.end_s) for hold in result(launch_of(POOL).events).holds]
    assert holds == [(0, "A", -2.0, 9.5), (1, "B", 2.0, 19.5), (0, "B", 10.0, 20.0)]

    lines, jobs = shared()
    cut = result(measure_pool(POOL, lines[:5], jobs)[0])
    assert [hold.end_s for hold in cut.holds] == [19.0, 19.0]  # of the last step
    assert [job.summary.ended_s for job in cut.jobs] == [None, None]

    assert measure_pool(POOL, lines[:2], {"A": [], "B": []}) == ([], [])


def test_times_of_a_pool_and_its_jobs() -> None:
    """A queue is left with the first step, not with the slot."""
    found = values(launch_of(POOL))

    assert found["makespan"] == 22.0
    assert (found["queue_wait[job=A]"], found["jct[job=A]"]) == (2.0, 11.5)
    assert (found["queue_wait[job=B]"], found["jct[job=B]"]) == (3.0, 18.0)
    assert found["idle_gap"] == 4.0  # from 20 s, when B's only worker stopped, to 24 s


def test_workers_over_time_and_what_a_job_measured_itself() -> None:
    launch = launch_of(POOL)
    a, b = result(launch.events).jobs

    assert a.sizes == [(0.0, 1)]
    assert b.sizes == [(5.0, 1), (14.0, 2)]
    assert values(launch)["most_workers[job=B]"] == 2
    assert values(launch)["stall[change=join 1 to 2,job=B]"] == 4.0
    assert values(launch)["samples_per_second[job=B,nodes=2]"] == 4.0


def test_generations_count_where_they_took_steps() -> None:
    kept = killed().history.kept()
    assert kept == {**dict.fromkeys(range(1, 7), 0), **dict.fromkeys(range(7, 13), 1)}

    timeline = Timeline()
    timeline.generation(0, [0], first=1.0, steps=5)
    timeline.generation(1, [0], first=11.0, steps=4, resumed=2)
    timeline.generation(2, [0], first=21.0, steps=2, resumed=2)
    assert timeline.history.kept() == {1: 0, 2: 0, 3: 2, 4: 2}

    timeline = Timeline()
    timeline.generation(0, [0], first=1.0, steps=1)
    timeline.generation(1, [0], first=5.0, steps=0)
    assert timeline.history.generations == [0]

    assert [line.step for line in killed().history.of("saved")] == [3, 6, 9, 12]

    history = killed().history
    assert (history.step_s(2), history.step_s(1), history.step_s(3)) == (1.0, 0.5, None)


def test_epochs_have_their_time_loss_rate_and_world_sizes_and_what_changes_cost_them() -> None:
    history = killed().history
    epochs = epoch_results(history, change_results(history))

    assert [(e.epoch, e.nodes, e.changes) for e in epochs] == [(0, [2], []), (1, [2], []), (2, [1], [0])]
    assert sum(epoch.seconds for epoch in epochs) == pytest.approx(27.5 - 11.0)
    assert epochs[0].loss == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    assert [(e.lr, e.stall_s, e.steps_redone) for e in epochs] == [(0.2, 0.0, 0), (0.2, 0.0, 0), (0.1, 5.0, 4)]
    assert rate_changes(history) == [
        event("rate", t=0.0, step=1, epoch=0, nodes=2, lr=0.2),
        event("rate", t=14.0, step=7, epoch=2, nodes=1, lr=0.1),
    ]


def test_a_schedule_shows_step_by_step_and_a_body_without_a_rate_has_no_trace() -> None:
    timeline = Timeline()
    timeline.generation(0, [0], first=2.0, steps=3)
    falling = [but(x, lr=1 / x.step) if x.what == "stepped" else x for x in timeline.history.lines]
    untold = [but(x, lr=None) if x.what == "stepped" else x for x in timeline.history.lines]

    assert [rate.step for rate in rate_changes(History(falling))] == [1, 2, 3]
    assert rate_changes(History(untold)) == []


def test_a_rate_is_kept_by_epoch_and_number_of_nodes_as_rules_are_of_both() -> None:
    """Two nodes take six steps and one goes on in epoch 1; each node has 0.1, and a tenth of it behind epoch 0."""
    timeline = Timeline()
    end = timeline.generation(0, [0, 1], first=2.0, steps=4)
    timeline.generation(1, [0], first=end + 2, steps=4, resumed=4)
    seen = timeline.seen
    lines = [
        but(x, lr=x.lr * (0.1 if seen[x.step - 1][0] else 1)) if x.what == "stepped" and x.lr else x
        for x in timeline.history.lines
    ]
    rates = [(at, round(rate, 9)) for at, rate in rates_at(History(lines))]
    told = [found for found in rates if "epoch" in found[0]]

    assert told == [({"epoch": 0, "nodes": 2}, 0.2), ({"epoch": 1, "nodes": 2}, 0.02), ({"epoch": 1, "nodes": 1}, 0.01)]
    assert ({"nodes": 1}, 0.01) in rates


def test_the_time_of_a_step_is_looked_for_once_however_often_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for once for each step: the time of a long run grew with the square of its steps."""
    history = killed().history
    asked = []
    monkeypatch.setattr(module.Worker, "step_seconds", property(lambda worker: asked.append(worker) or [1.0]))

    assert {history.step_s(2) for _ in range(10)} == {1.0}
    assert len(asked) == 2
