"""What every verdict says of one metric: medians, their ratio, and how many launches there were."""

from __future__ import annotations

from support.metrics import metric

from pytest_distbench.judging.draft import Draft


def test_a_verdict_has_the_medians_of_the_values_there_are() -> None:
    verdict = Draft(metric(None), [1.0, None, 3.0], [4.0]).settle("unchanged").verdict

    assert (verdict.current, verdict.baseline, verdict.ratio) == (2.0, 4.0, 0.5)
    assert (verdict.launches, verdict.baseline_launches) == (3, 1)


def test_without_a_reference_there_is_no_ratio() -> None:
    verdict = Draft(metric(None), [1.0], []).settle("missing").verdict

    assert (verdict.current, verdict.baseline, verdict.ratio) == (1.0, None, None)


def test_the_ratio_of_the_rule_goes_before_that_of_the_medians() -> None:
    judgement = Draft(metric(None), [2.0], [1.0]).settle("regressed", "slow", ratio=1.5, limit=0.1, is_open=True)

    assert (judgement.verdict.ratio, judgement.verdict.limit, judgement.verdict.reason) == (1.5, 0.1, "slow")
    assert judgement.is_open
