"""What a collective takes, how long a step waits for it, and when a forecast has changed."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import pytest

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.forecast.cluster import Cluster, Terms
from pytest_distbench.forecast.kinds import MODELLED
from pytest_distbench.forecast.model import (
    COLLECTIVES,
    Call,
    Event,
    Point,
    Trace,
    fit,
    forecast,
    legs,
    time_of,
    with_terms,
)
from pytest_distbench.judging.comparison import Comparison
from pytest_distbench.judging.deciders import decide
from pytest_distbench.judging.thresholds import Circumstances
from pytest_distbench.records.metric import Sample

NODE, NETWORK = Terms(latency=1e-6, bandwidth=1e11), Terms(latency=1e-5, bandwidth=1e10)
CLUSTER = Cluster(ranks_per_node=8, within=0.25, node=NODE, network=NETWORK)
AHEAD = msgspec.structs.replace(CLUSTER, prefetch=1)
MIB = 2**20


def call(
    op: str = "all_reduce", size: int = 8, stride: int = 1, message_bytes: int = MIB, group: str = "default"
) -> Call:
    return Call(op, "float32", message_bytes, group, size, stride)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (call(size=1), 0.0),
        (call(size=8), 6 * 1e-6 + 2 * MIB / 1e11),  # the tree: log2(8) up and down
        (call(size=8, message_bytes=100 * MIB), 14 * 1e-6 + 1.75 * 100 * MIB / 1e11),  # the ring
        (call("all_gather_into_tensor", 4), 2 * 1e-6 + 3 * MIB / 1e11),
        (call("reduce_scatter_tensor", 4), 2 * 1e-6 + 0.75 * MIB / 1e11),
        (call("send", 2), 1e-6 + MIB / 1e11),
        (call("send", 2, stride=5), 1e-6 + MIB / 1e11),  # to rank 5 of the same node
        (call("send", 2, stride=8), 1e-5 + MIB / 1e10),
        (call("gather", 4), 2 * 1e-6 + 3 * MIB / 1e11),  # what the root receives
        (call("all_to_all", 4), 3 * 1e-6 + 0.75 * MIB / 1e11),  # pairwise
        (call("all_to_all", 8, message_bytes=8), 3 * 1e-6 + 3 * 4 / 1e11),  # Bruck
        (call("broadcast", 8, message_bytes=8), 3 * 1e-6 + 3 * 8 / 1e11),
        (call(size=4, stride=8), 6 * 1e-5 + 1.5 * MIB / 1e10),  # a rank of each of four nodes, by the ring
        (call(size=4, stride=0), 6 * 1e-5 + 1.5 * MIB / 1e10),
        (call(size=2, stride=4), 2 * 1e-6 + MIB / 1e11),  # both on one node
    ],
)
def test_a_collective_takes_its_messages_and_its_bytes(given: Call, seconds: float) -> None:
    assert time_of(given, CLUSTER) == pytest.approx(seconds)


def test_between_nodes_each_rank_sends_its_share() -> None:
    gather = call("all_gather_into_tensor", message_bytes=MIB // 8)
    within = time_of(call("reduce_scatter_tensor"), CLUSTER) + time_of(gather, CLUSTER)
    between = time_of(call(size=2, stride=8, message_bytes=MIB // 8), CLUSTER)

    assert time_of(call(size=16), CLUSTER) == pytest.approx(within + between)


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (call(size=8), {"node": 2 * MIB}),  # the tree
        (call(size=4, stride=8), {"network": 1.5 * MIB}),  # the ring
        (call("all_gather_into_tensor", 16), {"network": MIB, "node": 7 * 2 * MIB}),
        (call("reduce_scatter_tensor", 16), {"node": 7 / 8 * MIB, "network": MIB / 16}),
        (call("broadcast", 16), {"network": MIB}),
        (call(size=1), {}),
    ],
)
def test_each_part_of_a_collective_has_its_links(given: Call, sent: dict[str, float]) -> None:
    found = legs(given, CLUSTER)

    assert {leg.link: leg.sent_bytes for leg in found} == pytest.approx(sent)
    assert sum(leg.seconds for leg in found) == time_of(given, CLUSTER)


@pytest.mark.parametrize("op", COLLECTIVES)
def test_more_ranks_and_more_bytes_take_no_less(op: str) -> None:
    times = [time_of(call(op, size), CLUSTER) for size in (2, 4, 8, 16, 64, 1024)]

    assert times == sorted(times)
    assert time_of(call(op, 16, message_bytes=8 * MIB), CLUSTER) >= times[3]


def test_what_was_measured_takes_the_place_of_the_links() -> None:
    stated = {"all_reduce": Terms(latency=1e-3, bandwidth=1e9, algorithm="ring")}
    measured = msgspec.structs.replace(CLUSTER, collectives=stated)

    assert time_of(call(size=4), measured) == pytest.approx(6e-3 + 1.5 * MIB / 1e9)
    assert time_of(call("broadcast", 4), measured) == time_of(call("broadcast", 4), CLUSTER)


def test_an_unknown_collective_is_named() -> None:
    with pytest.raises(ConfigurationError, match="no time of 'all_dance'; known are all_gather, "):
        time_of(call("all_dance"), CLUSTER)


TAKES = time_of(call(), CLUSTER)


def step(*events: tuple[int, bool, float], calls: int = 1, computing_s: float = 1.0) -> Trace:
    return Trace(calls=[call()] * calls, events=[Event(*each) for each in events], computing_s=computing_s)


def test_what_is_waited_for_at_once_is_exposed() -> None:
    found = forecast(step((0, False, 0.5), (0, True, 0.5)), CLUSTER)

    assert found.step_s == found.most_s == pytest.approx(1 + TAKES)
    assert found.least_s == 1.0
    assert found.exposed == {str(call()): pytest.approx(TAKES)}


def test_what_is_over_before_it_is_waited_for_is_hidden() -> None:
    found = forecast(step((0, False, 0.5), (0, True, 0.9)), CLUSTER)

    assert found.step_s == 1.0
    assert found.exposed == {}


def test_calls_of_a_group_follow_each_other() -> None:
    found = forecast(step((0, False, 1.0), (1, False, 1.0), (0, True, 1.0), (1, True, 1.0), calls=2), CLUSTER)

    assert found.step_s == pytest.approx(1 + 2 * TAKES)


def test_a_gather_that_was_fetched_ahead_is_hidden() -> None:
    gathers = [call("all_gather_into_tensor")._replace(is_sharding=True)] * 3
    events = [
        event for i in range(3) for event in (Event(i, is_wait=False, at_s=i / 3), Event(i, is_wait=True, at_s=i / 3))
    ]
    trace = Trace(calls=gathers, events=events, computing_s=1.0)
    one = time_of(gathers[0], CLUSTER)

    assert forecast(trace, CLUSTER).step_s == pytest.approx(1 + 3 * one)
    assert forecast(trace, AHEAD).step_s == pytest.approx(1 + one)  # the first has nothing to hide behind
    late = [gathers[0], *(each._replace(in_backward=True) for each in gathers[1:])]
    assert forecast(replace(trace, calls=late), AHEAD).step_s == pytest.approx(1 + 2 * one)  # nor has that of a pass
    own = [each._replace(is_sharding=False) for each in gathers]  # one that a body waits for, as for values
    assert forecast(replace(trace, calls=own), AHEAD).step_s == pytest.approx(1 + 3 * one)


def test_a_reduction_of_fsdp_is_waited_for_when_the_next_one_comes() -> None:
    reduction = call("reduce_scatter_tensor")._replace(is_sharding=True)
    events = [Event(i, is_wait, at_s) for i, at_s in enumerate((0.2, 0.6)) for is_wait in (False, True)]
    trace = Trace(calls=[reduction] * 2, events=events, computing_s=0.6)

    assert forecast(trace, CLUSTER).step_s == pytest.approx(0.6 + 2 * time_of(reduction, CLUSTER))
    assert forecast(trace, AHEAD).step_s == pytest.approx(0.6 + time_of(reduction, CLUSTER))  # that at the end


def test_an_all_reduce_over_replicas_follows_the_reduction_of_its_block() -> None:
    scatter = call("reduce_scatter_tensor", group="node")._replace(is_sharding=True)
    over = call("all_reduce", stride=8, group="nodes")._replace(is_sharding=True)
    events = [Event(i, is_wait=False, at_s=at_s) for i, at_s in enumerate((0.2, 0.2, 0.6, 0.6))]
    trace = Trace(calls=[scatter, over] * 2, events=events, computing_s=0.6)

    found = forecast(trace, AHEAD)

    assert found.step_s == pytest.approx(0.6 + time_of(scatter, CLUSTER) + time_of(over, CLUSTER))  # of the last block


def test_a_step_that_computes_longer_hides_more() -> None:
    short = step((0, False, 0.0), (0, True, TAKES / 2), computing_s=TAKES)

    assert forecast(short, CLUSTER).step_s == pytest.approx(1.5 * TAKES)
    assert forecast(short.scaled(2 * TAKES), CLUSTER).step_s == pytest.approx(2 * TAKES)


def test_terms_that_are_off_move_what_is_exposed() -> None:
    trace = step((0, False, 1.0), (0, True, 1.0))

    assert forecast(trace, with_terms(CLUSTER, 1.25)).step_s == pytest.approx(1 + 1.25 * TAKES)


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_fit_finds_the_terms_that_points_were_made_with(op: str, algorithm: str) -> None:
    cost = COLLECTIVES[op][("ring", "tree").index(algorithm)]
    points = []
    for size in (2, 4, 8):
        for message_bytes in (2**10, 2**16, 2**22):
            messages, sent = cost(size, message_bytes)
            points.append(Point(size, message_bytes, messages * 3e-5 + sent / 2e9))
    terms, miss = fit(op, points)

    assert terms.algorithm == algorithm
    assert (terms.latency, terms.bandwidth) == (pytest.approx(3e-5), pytest.approx(2e9))
    assert miss < 1e-9


def test_a_fit_of_equal_times_has_no_term_below_zero() -> None:
    terms, _ = fit("all_reduce", [Point(2, size, 1e-4) for size in (4, 64, 2**20)])

    assert terms.latency > 0
    assert terms.bandwidth > 0
    assert math.isfinite(terms.bandwidth)


def forecast_of(*seconds: float) -> Sample:
    return Sample(name="step_forecast", unit="s", better="modelled", value=seconds[-1], values=list(seconds))


@pytest.mark.parametrize(
    ("now", "kind", "reason"),
    [
        (forecast_of(8, 12, 10), "unchanged", ""),
        (forecast_of(8.1, 12.2, 10.15), "unchanged", ""),
        (forecast_of(9, 14, 11), "regressed", "+10.0 % to +16.7 % if terms are off"),
        (forecast_of(7.9, 14, 11), "inconclusive", "-1.2 % to +16.7 % if terms are off"),
        (forecast_of(7, 10, 9), "improved", "-16.7 % to -10.0 % if terms are off"),
        (forecast_of(8.1, 10, 9), "unchanged", ""),
    ],
)
def test_a_change_counts_if_it_is_one_whatever_the_terms_are(now: Sample, kind: str, reason: str) -> None:
    under = Circumstances(tolerance=MODELLED.tolerance or 0.0, comparisons=1)

    found = decide(Comparison(baseline=[forecast_of(8, 12, 10)], candidate=[now], under=under))

    assert found.kind == kind
    assert found.reason == reason
    assert found.threshold == MODELLED.tolerance
