"""How large a slowdown is planted, and in which clocks it can be seen."""

from __future__ import annotations

import pytest
from support.results import verdict

from pytest_distbench.judging.control import clocks_of, share_beyond, spoken_against
from pytest_distbench.judging.terms import Terms
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement

LAUNCH = LaunchRecord(
    index=0,
    outcome="passed",
    wall_s=1.0,
    measurements=[
        Measurement(name="step", unit="s", better="lower", value=1.0),
        Measurement(name="rate", unit="1/s", better="higher", value=1.0),
        Measurement(name="size", unit="B", better="lower", value=1.0),
        Measurement(name="shown", unit="s", better="info", value=1.0),
        Measurement(name="loss_curve", unit="", better="curve", value=1.0),
    ],
)


@pytest.mark.parametrize(
    ("metrics", "left_out", "clocks"),
    [(None, (), ["step", "rate"]), (("step", "size"), (), ["step"]), (None, ("step",), ["rate"])],
)
def test_clocks_are_what_is_judged_and_takes_time(
    metrics: tuple[str, ...] | None, left_out: tuple[str, ...], clocks: list[str]
) -> None:
    terms = Terms(default_tolerance=0.1, max_launches=1, cores=1, metrics=metrics)

    assert clocks_of(terms, LAUNCH, left_out=left_out) == clocks


@pytest.mark.parametrize(("tolerances", "share"), [([0.3], 0.4), ([0.06, 0.3], 0.4), ([0.0], 0.05)])
def test_what_is_planted_is_a_third_more_than_the_largest_tolerance(tolerances: list[float], share: float) -> None:
    assert share_beyond(tolerances) == pytest.approx(share)


def test_what_is_red_besides_speaks_against_a_case() -> None:
    clock, curve = verdict("regressed"), verdict("regressed", metric="loss_curve", better="curve")

    assert spoken_against([clock], ["step"]) is None
    assert spoken_against([clock, curve], ["step"]) == curve
