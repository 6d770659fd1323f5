"""A training's metric with all its seeds: one value per seed, in one order on both sides."""

from __future__ import annotations

import pytest
from support.metrics import baseline, metric

from pytest_distbench.judging.family import Family, known_values


def family(**changes: object) -> Family:
    made = {
        "current": {"a": [metric(1.0), metric(3.0)], "b": [metric(5.0), metric(None)], "new": [metric(7.0)]},
        "stored": {"b": baseline([4.0]), "a": baseline([1.0, 2.0])},
        "same_software": True,
    }
    return Family(**(made | changes))  # type: ignore[arg-type]


def test_a_seed_has_the_mean_over_launches_and_none_where_a_launch_has_none() -> None:
    assert family().new == [2.0, None, 7.0]


def test_stored_values_stand_in_the_order_of_the_new_ones() -> None:
    assert family().old == [1.5, 4.0]


@pytest.mark.parametrize(("given", "accepted"), [(None, 0.2), (0.0, 0.0), (0.5, 0.5)])
def test_the_tolerance_that_was_set_goes_before_the_rules_own(given: float | None, accepted: float) -> None:
    assert family(tolerance=given).tolerance_or(0.2) == accepted


def test_values_that_are_not_there_are_left_out() -> None:
    assert known_values([1.0, None, 0.0]) == [1.0, 0.0]
