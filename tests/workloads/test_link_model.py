"""What follows from a sweep is recorded by the rank that made it, and left out where it cannot be known."""

from __future__ import annotations

import time

import pytest
from support.ranks import Line, make_rank

from pytest_distbench.worker.clock.delay import Delay
from pytest_distbench.worker.clock.meter import Meter
from pytest_distbench.worker.context import RankContext
from pytest_distbench.workloads.link_model import needs_all_sizes, record_link

SIZES = [4 * 4**n for n in range(8)]
IDENTITY = {"mode": "batch", "in_place": True}


def swept(rank: RankContext, sizes: list[int], latency_s: float = 1e-4, **point: int) -> RankContext:
    """Three iterations of each size, the middle one what the model says."""
    for size in sizes:
        t = latency_s + size / 1e9
        at = {**point, "message_bytes": size}
        rank.record_times(
            "latency",
            [t, t, 9 * t],
            Meter(Delay(0.0, time.perf_counter)),
            at=at,
            identity=IDENTITY,
            facts={"busbw_factor": 1.0},
        )
    record_link(rank)
    return rank


def recorded(rank: RankContext) -> dict[str, float]:
    return {o.name: o.values[0] for o in rank.notebook.observations if o.name != "latency"}


def test_a_sweep_gives_latency_and_bandwidth_and_the_size_that_gets_half_of_it() -> None:
    rank = swept(make_rank(), SIZES)

    assert recorded(rank) == pytest.approx(
        {"startup_latency": 1e-4, "asymptotic_bandwidth": 1e9, "half_performance_size": 1e5}
    )


def test_the_terms_have_the_identity_of_the_clock_and_say_how_sure_they_are() -> None:
    terms = [o for o in swept(make_rank(), SIZES).notebook.observations if o.name != "latency"]

    assert [(o.better, o.unit) for o in terms] == [("lower", "s"), ("higher", "B/s"), ("info", "B")]
    assert all(o.identity == IDENTITY and o.facts == {"busbw_factor": 1.0, "sizes": 8} for o in terms)
    assert all(o.companions["uncertainty"][0] < 0.01 for o in terms)


def test_too_few_sizes_give_nothing_and_that_is_told() -> None:
    line = Line()
    rank = swept(make_rank(line), SIZES[:5])

    assert recorded(rank) == {}
    assert line.shown == ["latency and bandwidth are not told apart: 5 sizes, wanted 6 or more"]


def test_a_message_without_bytes_is_no_size() -> None:
    assert recorded(swept(make_rank(), [0, *SIZES[:5]])) == {}


def test_sweeps_at_several_points_give_terms_each() -> None:
    rank = swept(make_rank(), SIZES, root=0)
    swept_again = [o.at for o in rank.notebook.observations if o.name == "startup_latency"]

    assert swept_again == [{"root": 0}]


def test_a_launch_for_open_answers_measures_all_sizes_only_where_the_terms_are_open() -> None:
    assert needs_all_sizes(make_rank())
    assert needs_all_sizes(make_rank(only=["asymptotic_bandwidth"]))
    assert not needs_all_sizes(make_rank(only=["latency[message_bytes=4]"]))
    assert recorded(swept(make_rank(only=["latency[message_bytes=4]"]), SIZES)) == {}
