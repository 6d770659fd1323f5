"""A change of a forecast, with the interval that the cluster's terms leave."""

from __future__ import annotations

import pytest

from pytest_distbench.forecast.kinds import MODELLED
from pytest_distbench.judging.comparison import Comparison
from pytest_distbench.judging.deciders import decide
from pytest_distbench.judging.thresholds import Circumstances
from pytest_distbench.records.metric import Sample


def step(*seconds: float) -> Sample:
    return Sample(name="step_forecast", unit="s", better="modelled", value=seconds[-1], values=list(seconds))


@pytest.mark.parametrize(
    ("now", "kind", "reason"),
    [
        (step(8, 12, 10), "unchanged", ""),
        (step(8.1, 12.2, 10.15), "unchanged", ""),
        (step(9, 14, 11), "regressed", "+10.0 % to +16.7 % if terms are off"),
        (step(7.9, 14, 11), "inconclusive", "-1.2 % to +16.7 % if terms are off"),
        (step(7, 10, 9), "improved", "-16.7 % to -10.0 % if terms are off"),
        (step(8.1, 10, 9), "unchanged", ""),
    ],
)
def test_a_change_counts_if_it_is_one_whatever_the_terms_are(now: Sample, kind: str, reason: str) -> None:
    under = Circumstances(tolerance=MODELLED.tolerance or 0.0, comparisons=1)

    found = decide(Comparison(baseline=[step(8, 12, 10)], candidate=[now], under=under))

    assert found.kind == kind
    assert found.reason == reason
    assert found.threshold == MODELLED.tolerance
