"""A demand, and a pool in words."""

from __future__ import annotations

from support.pools import POOL, SERVED

from pytest_distbench.records.pool import Demand, Serving
from pytest_distbench.records.record import replace

SERVING = Serving(demand=[Demand(at_s=2, slots=1), Demand(at_s=52, slots=3), Demand(at_s=62, slots=0)])


def test_slots_are_those_of_the_last_demand_that_has_come() -> None:
    assert [SERVING.slots(at_s) for at_s in (0, 2, 51.9, 52, 99)] == [0, 1, 1, 3, 0]


def test_a_pool_in_words() -> None:
    assert str(POOL) == "2 slots, elastic; A on 1 nodes from 0 s; B on 1 to 2 nodes from 2 s; engine stock"
    assert str(SERVED).endswith("engine stock; serving on 1 from 2 s, 0 from 6 s")
    assert str(replace(POOL, compute="synthetic", cores=2)).endswith("; synthetic compute; oversubscribed: 2 cores")
