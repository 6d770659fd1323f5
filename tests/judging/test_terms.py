"""Which of the tolerances that were given counts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.judging.terms import Terms, check_tolerance

NAMED = {"step": 0.2}


@pytest.mark.parametrize(
    ("of_metric", "of_case", "of_test", "accepted", "named"),
    [
        (0.5, 0.4, NAMED, 0.5, 0.5),
        (None, 0.4, NAMED, 0.4, 0.4),
        (None, None, NAMED, 0.2, 0.2),
        (None, None, {"other": 0.2}, 0.1, None),
        (None, None, 0.3, 0.3, None),
        (None, None, None, 0.1, None),
        (0.0, 0.4, 0.3, 0.0, 0.0),
        (None, None, 0.0, 0.0, None),
    ],
)
def test_the_tolerance_closest_to_the_number_counts(
    of_metric: float | None,
    of_case: float | None,
    of_test: float | Mapping[str, float] | None,
    accepted: float,
    named: float | None,
) -> None:
    terms = Terms(tolerance=of_test, default_tolerance=0.1, max_launches=1, cores=2)

    assert terms.tolerance_of("step", (of_metric, of_case)) == accepted
    assert terms.own_tolerance_of("step", (of_metric, of_case)) == named


def test_metrics_that_are_not_listed_are_not_judged() -> None:
    terms = Terms(metrics=("step",), default_tolerance=0.1, max_launches=1, cores=2)

    assert (terms.wants("step"), terms.wants("loss")) == (True, False)


@pytest.mark.parametrize("tolerance", [None, 0.1, {"step": 0.1}, {"time_to_accuracy": 0.2}])
def test_a_tolerance_of_what_there_is_passes(tolerance: object) -> None:
    check_tolerance(tolerance, {"step", "steps_to_accuracy"}, where="marker of t")


def test_a_tolerance_by_a_misspelt_name_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"tolerance of 'stepp' \(marker of t\) is of nothing.*there are loss, step$"
    ):
        check_tolerance({"step": 0.1, "stepp": 0.1}, {"step", "loss"}, where="marker of t")
