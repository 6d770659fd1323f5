"""A demand, and a pool in words."""

from __future__ import annotations

from support.pools import POOL, SERVED

from pytest_distbench.records.pool import Demand, Serving
from pytest_distbench.records.record import replace

SERVING = Serving(
    demand=[Demand(at_s=2, per_s=10), Demand(at_s=52, per_s=100), Demand(at_s=62, per_s=0)], per_replica=50
)


def test_replicas_are_as_many_as_the_demand_needs() -> None:
    assert [SERVING.replicas(per_s) for per_s in (0, 1, 50, 51, 100)] == [0, 1, 1, 2, 2]
    assert [SERVING.per_s(at_s) for at_s in (0, 2, 51.9, 52, 99)] == [0, 10, 10, 100, 0]


def test_a_pool_in_words() -> None:
    assert str(POOL) == "2 slots, elastic; A on 1 nodes from 0 s; B on 1 to 2 nodes from 2 s; engine stock"
    assert str(SERVED).endswith("engine stock; serving 1/s from 2 s, 0/s from 6 s, 5/s per replica")
    assert str(replace(POOL, compute="synthetic", cores=2)).endswith("; synthetic compute; oversubscribed: 2 cores")
