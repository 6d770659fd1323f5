"""What a serving showed, from the timeline of a pool that never ran."""

from __future__ import annotations

from support.pools import SERVED, launch_of, served

from pytest_distbench.jobs.measures.pool import measure_pool


def test_how_soon_slots_were_free_and_the_serving_ready() -> None:
    found = {m.key: m.value for m in launch_of(SERVED).measurements}

    assert (found["preempt_latency"], found["serving_ready"]) == (0.5, 2.0)


def test_a_demand_that_was_never_met_has_no_latency() -> None:
    lines, jobs = served()
    _, measurements = measure_pool(SERVED, lines[:6], jobs)
    found = {m.key: m.value for m in measurements}

    assert (found["preempt_latency"], found["serving_ready"]) == (None, None)


def test_a_server_that_is_ready_counts_as_productive() -> None:
    """Three seconds of it, of two slots over 22 s: the training's steps are 1 s each, 3 of two and 15 of one."""
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
