"""When the steps of a training were taken, and what is drawn of its series."""

from __future__ import annotations

import pytest
from support.results import result

from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.page.chart import Point
from pytest_distbench.report.page.charts.courses import curves_of, median_curve, over_time, target_of, unit_of


def series(name: str, *values: float, every: int = 1, seed: int = 0, unit: str = "") -> Measurement:
    facts = {"every": every} if every > 1 else {}
    at = {"seed": seed}
    return Measurement(name=name, unit=unit, better="info", value=values[-1], series=list(values), at=at, facts=facts)


def of(*measured: Measurement) -> CaseResult:
    return result(launches=[LaunchRecord(index=0, outcome="passed", wall_s=1.0, measurements=list(measured))])


@pytest.mark.parametrize(
    ("ends", "times"),
    [
        ([series("evaluation_ends", 2.0, 6.0, every=2)], [1.0, 2.0, 4.0, 6.0, 8.0]),
        ([series("evaluation_ends", 4.0, every=2)], [2.0, 4.0, 6.0, 8.0, 10.0]),
        (
            [series("evaluation_ends", 1.0, 2.0, every=2), series("evaluation_ends", 3.0, 6.0, every=2, seed=1)],
            [1.0, 2.0, 3.0, 4.0, 5.0],
        ),
        (
            [series("evaluation_ends", 9.0, 10.0, every=2), series("evaluation_ends", 1.0, 2.0, 3.0, every=2, seed=1)],
            [2.5, 5.0, 5.5, 6.0, 6.5],
        ),
        ([Measurement(name="step_time", unit="s", better="lower", value=0.5)], [0.5, 1.0, 1.5, 2.0, 2.5]),
        ([], []),
    ],
)
def test_a_step_was_taken_between_the_evaluations_about_it(ends: list[Measurement], times: list[float]) -> None:
    """The line of the first two or the last two goes on; of several seeds the median counts, of the slow ones too
    that end early; else the median step."""
    steps: list[Point] = [(float(step), 1.0) for step in range(1, 6)]

    assert [x for x, _ in over_time(of(*ends), steps)] == times


def test_when_evaluations_ended_is_no_curve() -> None:
    found = curves_of(of(series("evaluation_ends", 1.0, 2.0), series("learning_rate", 0.1, 0.2)).launches)

    assert list(found) == ["learning_rate"]


def test_what_was_evaluated_stands_for_what_the_training_computed() -> None:
    """Their median would be neither."""
    evaluated = series("evaluated_loss", 0.4, 0.3, every=2)
    found = curves_of(of(series("loss", 0.9, 0.8, 0.7, 0.6), evaluated, series("accuracy", 0.5, 0.6)).launches)

    assert found["loss"] == [("seed 0", [(2, 0.4), (4, 0.3)])]
    assert list(found) == ["loss", "accuracy"]


def test_a_median_has_at_each_step_what_came_so_far() -> None:
    assert median_curve([[(1, 3.0), (2, 1.0)], [(1, 5.0)], [(1, 4.0), (2, 2.0)]]) == [(1, 4.0), (2, 1.5)]


def test_unit_and_target_are_those_of_the_name() -> None:
    goal = Measurement(name="steps_to_loss", unit="steps", better="steps", value=2, identity={"target": 0.2828})
    results = [of(series("waited", 1.0, 2.0, unit="s"), goal)]

    assert (unit_of(results, "waited"), unit_of(results, "loss")) == ("s", "")
    assert (target_of(results, "loss"), target_of(results, "waited")) == (0.2828, None)
