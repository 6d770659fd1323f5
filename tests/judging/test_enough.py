"""How many launches make a baseline: as many as its noise needs, and no fewer for having been quiet by luck."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from support.stores import entry

from pytest_distbench.judging.enough import are_enough, explained_by_noise, fewest_launches
from pytest_distbench.judging.terms import Terms
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.record import replace


def terms(tolerance: float = 0.1, **changes: object) -> Terms:
    return Terms(**{"default_tolerance": tolerance, "max_launches": 10, "cores": 2} | changes)  # type: ignore[arg-type]


def launches(*metrics: Sequence[float | None], **changes: object) -> list[LaunchRecord]:
    """One launch per value; of several metrics at several points of one name."""
    made = [
        [
            replace(Measurement(name="step", unit="s", better="lower", value=value, at={"i": i}), **changes)
            for i, value in enumerate(values)
        ]
        for values in zip(*metrics, strict=True)
    ]
    return [LaunchRecord(index=i, outcome="passed", wall_s=1.0, measurements=found) for i, found in enumerate(made)]


def quiet(count: int, sigma: float = 0.001) -> list[float]:
    return [math.exp(sigma * (-1) ** i) for i in range(count)]


@pytest.mark.parametrize("better", ["exact", "memory", "curve"])
def test_what_repeats_needs_two_launches(better: str) -> None:
    series = {"series": [2.0, 1.0]} if better == "curve" else {}

    assert not are_enough(terms(), launches([7.0], better=better, **series))
    assert are_enough(terms(), launches([7.0, 7.0], better=better, **series))


def test_a_quiet_clock_needs_five_launches_and_a_noisy_one_as_many_as_there_may_be() -> None:
    assert not are_enough(terms(), launches(quiet(4)))
    assert are_enough(terms(), launches(quiet(5)))
    assert not are_enough(terms(), launches(quiet(9, sigma=0.1)))


def test_the_noise_that_a_tolerance_allows_is_enough() -> None:
    made = launches(quiet(5, sigma=0.05))

    assert not are_enough(terms(0.1), made)
    assert are_enough(terms(1.0), made)
    assert are_enough(terms(0.1), made, entry(1.0, tolerance=1.0)), "as set by hand in the entry"


def test_one_noisy_metric_asks_for_more_unless_it_is_not_judged() -> None:
    made = launches(quiet(5), quiet(5, sigma=0.3))
    other = [replace(m, measurements=[m.measurements[0], replace(m.measurements[1], name="b")]) for m in made]

    assert not are_enough(terms(), other)
    assert are_enough(terms(metrics=("step",)), other)
    assert fewest_launches(terms(metrics=("count",)), other) == 2


def test_a_metric_is_believed_to_be_no_quieter_than_half_of_its_siblings() -> None:
    assert are_enough(terms(), launches(*[quiet(5)] * 5))
    assert not are_enough(terms(), launches(quiet(5), quiet(5), *[quiet(5, sigma=0.3)] * 4))


def test_a_training_that_chance_is_in_asks_for_all_launches() -> None:
    assert not are_enough(terms(), launches(quiet(9), better="same"))


def test_values_without_a_ratio_are_enough_where_they_repeat() -> None:
    assert are_enough(terms(), launches([0.0] * 5))
    assert not are_enough(terms(), launches([0.0, 0.0, 0.0, 0.0, 1.0]))
    assert not are_enough(terms(), launches([1.0, 1.0, 1.0, 1.0, None]))


def test_stopping_when_the_noise_is_known_does_not_keep_baselines_that_were_quiet_by_luck() -> None:
    """Noise that a tolerance of 20 % cannot decide: whoever stopped at its estimate would keep a third after five."""
    dice, sigma, tolerance = random.Random(5), 0.07, 0.2
    assert explained_by_noise(sigma, 10) > math.log1p(tolerance)
    kept = sum(
        are_enough(terms(tolerance), launches([math.exp(dice.gauss(0, sigma)) for _ in range(5)])) for _ in range(500)
    )

    assert kept / 500 < 0.15
