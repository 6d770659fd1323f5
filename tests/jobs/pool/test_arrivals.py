"""Arrivals follow the demand, and a seed repeats them."""

from __future__ import annotations

import itertools

import pytest

from pytest_distbench.jobs.pool.arrivals import Backlog, arrivals
from pytest_distbench.records.pool import Demand, Serving

SERVING = Serving(
    demand=[Demand(at_s=2, per_s=10), Demand(at_s=52, per_s=100), Demand(at_s=62, per_s=0)], per_replica=50
)


def test_rates_are_those_of_the_demand() -> None:
    """A Poisson count is within four of its standard deviations."""
    found = list(arrivals(SERVING))

    assert found == sorted(found)
    assert sum(at_s < 2 or at_s >= 62 for at_s in found) == 0
    assert sum(at_s < 52 for at_s in found) == pytest.approx(500, abs=4 * 500**0.5)
    assert sum(at_s >= 52 for at_s in found) == pytest.approx(1000, abs=4 * 1000**0.5)


def test_gaps_are_irregular_as_of_requests_that_do_not_know_of_each_other() -> None:
    """The deviation of exponential gaps is their mean."""
    gaps = [later - earlier for earlier, later in itertools.pairwise(t for t in arrivals(SERVING) if t >= 52)]
    mean = sum(gaps) / len(gaps)

    assert (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 == pytest.approx(mean, rel=0.15)


def test_a_seed_repeats_them_and_another_does_not() -> None:
    from pytest_distbench.records.record import replace

    assert list(arrivals(SERVING)) == list(arrivals(SERVING))
    assert list(arrivals(SERVING)) != list(arrivals(replace(SERVING, seed=1)))


def test_a_demand_without_end_goes_on() -> None:
    endless = Serving(demand=[Demand(at_s=0, per_s=1)], per_replica=1)

    assert list(itertools.islice(arrivals(endless), 1000))[-1] == pytest.approx(1000, rel=0.2)


def test_a_backlog_is_what_is_due_and_unanswered() -> None:
    backlog = Backlog(SERVING)
    due = sum(at_s <= 30 for at_s in arrivals(SERVING))

    assert backlog.size(1, answered=0) == 0
    assert backlog.size(30, answered=7) == due - 7
    assert backlog.size(100, answered=0) == len(list(arrivals(SERVING)))
