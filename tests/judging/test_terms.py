"""Which of the tolerances that were given counts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pytest_distbench.judging.terms import Terms
from pytest_distbench.records.kinds import Better
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.record import replace

NAMED = {"step": 0.2}
STEP = Measurement(name="step", unit="s", better="lower", value=1.0)


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

    assert terms.tolerance_of(STEP, (of_metric, of_case)) == accepted
    assert terms.own_tolerance_of("step", (of_metric, of_case)) == named


def test_a_kind_with_a_tolerance_of_its_own_gives_way_to_nothing_less_than_its_name() -> None:
    """What a test accepts of its clocks, it does not accept of its memory."""
    memory = replace(STEP, name="peak_memory", unit="B", better="memory")
    clocks, named = (
        Terms(tolerance=tolerance, default_tolerance=0.1, max_launches=1, cores=2)
        for tolerance in (0.5, {"peak_memory": 0.05})
    )

    assert clocks.tolerance_of(memory, (None, None)) == 0.2
    assert named.tolerance_of(memory, (None, None)) == 0.05
    assert named.tolerance_of(memory, (None, 0.4)) == 0.4


def test_metrics_that_are_not_listed_are_not_judged() -> None:
    terms = Terms(metrics=("step",), default_tolerance=0.1, max_launches=1, cores=2)

    assert (terms.wants("step"), terms.wants("loss")) == (True, False)


@pytest.mark.parametrize(
    ("tolerance", "metrics", "measured", "misspelt"),
    [
        (None, None, {"step"}, {}),
        (0.1, None, {"step"}, {}),
        ({"step": 0.1}, ("step",), {"step", "steps"}, {}),
        ({"stepp": 0.1}, None, {"step", "loss"}, {"stepp": "step"}),
        ({"step": 0.1}, ("latncy",), {"step", "latency"}, {"latncy": "latency"}),
        ({"step": 0.1, "steps": 0.2}, None, {"step"}, {}),  # of two tests of a class
        ({"other": 0.1}, None, {"step", "latency"}, {}),  # of another test
        ({"time_to_accuracy": 0.1}, None, {"steps_to_accuracy"}, {}),  # the goal was missed
    ],
)
def test_a_name_that_is_nearly_a_metrics_is_told(
    tolerance: float | dict[str, float] | None,
    metrics: tuple[str, ...] | None,
    measured: set[str],
    misspelt: dict[str, str],
) -> None:
    terms = Terms(tolerance=tolerance, metrics=metrics, default_tolerance=0.1, max_launches=1, cores=2)

    assert terms.misspelt(measured) == misspelt


def test_a_tolerance_of_what_is_equal_or_not_has_no_effect() -> None:
    kinds: dict[str, Better] = {"step": "lower", "count": "exact", "bytes": "exact", "loss": "curve"}
    named = dict.fromkeys(["step", "count", "loss", "other"], 0.1)

    def without_effect(tolerance: float | dict[str, float] | None) -> list[str]:
        return Terms(tolerance=tolerance, default_tolerance=0.1, max_launches=1, cores=2).without_effect(kinds)

    assert [without_effect(named), without_effect(0.1), without_effect(None)] == [["count"], [], []]
