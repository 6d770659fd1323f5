"""The decision rule, case by case, with the numbers written out."""

from __future__ import annotations

import math
import random

import pytest

from pytest_distbench.records import BaselineMetric, Better, Measurement
from pytest_distbench.verdict import Rule, judge, not_measured, smallest_detectable, typical_noise

STORED = [1.00, 1.02, 0.98, 1.01, 0.99, 1.03, 0.97, 1.00, 1.01, 0.99]


def metric(value: float | None, better: Better = "lower") -> Measurement:
    return Measurement(name="latency", unit="s", better=better, value=value)


def baseline(
    values: list[float | None] | list[float], better: Better = "lower", tolerance: float | None = None
) -> BaselineMetric:
    return BaselineMetric(better=better, unit="s", launches=list(values), tolerance=tolerance)


def rule(**changes: object) -> Rule:
    return Rule(**({"tolerance": 0.1, "comparisons": 50, "max_launches": 5} | changes))  # type: ignore[arg-type]


def kind(current: list[float], stored: list[float], better: Better = "lower", **changes: object) -> str:
    return judge([metric(v, better) for v in current], baseline(stored, better), rule(**changes)).verdict.kind


def test_one_launch_like_the_baseline_is_enough() -> None:
    judgement = judge([metric(1.01)], baseline(STORED), rule())

    assert (judgement.verdict.kind, judgement.is_open) == ("unchanged", False)


def test_a_slow_first_launch_asks_for_more() -> None:
    assert judge([metric(1.5)], baseline(STORED), rule()).is_open


def test_slower_in_every_launch_is_a_regression() -> None:
    verdict = judge([metric(1.5)] * 5, baseline(STORED), rule()).verdict

    assert verdict.kind == "regressed"
    assert verdict.ratio == pytest.approx(1.5)
    assert verdict.limit == pytest.approx(0.1)


def test_faster_in_every_launch_is_an_improvement() -> None:
    assert kind([0.5] * 5, STORED) == "improved"


def test_for_throughput_less_is_worse() -> None:
    assert kind([0.5] * 5, STORED, "higher") == "regressed"
    assert kind([1.5] * 5, STORED, "higher") == "improved"


def test_a_change_within_the_tolerance_is_unchanged() -> None:
    assert kind([1.08] * 5, STORED) == "unchanged"


def test_the_tolerance_of_the_baseline_file_comes_first() -> None:
    assert judge([metric(1.5)] * 5, baseline(STORED, tolerance=0.6), rule()).verdict.kind == "unchanged"


def test_one_launch_as_fast_as_the_baseline_keeps_a_regression_from_being_called() -> None:
    assert kind([1.5, 1.5, 1.5, 1.5, 1.02], STORED) != "regressed"


def test_noise_widens_the_limit_and_says_what_could_have_been_seen() -> None:
    noisy = [1.0, 1.6, 0.8, 1.3, 0.7, 1.9, 1.1, 0.9, 1.5, 1.2]
    verdict = judge([metric(v) for v in (1.8, 1.2, 2.4, 1.7, 1.5)], baseline(noisy), rule()).verdict

    assert verdict.kind == "inconclusive"
    assert "smallest slowdown we could have seen" in verdict.reason


def test_a_metric_is_not_believed_to_be_quieter_than_its_siblings() -> None:
    assert kind([1.3] * 5, STORED) == "regressed"
    assert kind([1.3] * 5, STORED, noise_floor=0.2) == "inconclusive"


def test_the_typical_noise_is_the_median_of_the_siblings() -> None:
    def noisy(sigma: float) -> BaselineMetric:
        return baseline([math.exp(sigma), math.exp(-sigma)])

    metrics = {f"latency[message_bytes={i}]": noisy(0.1 * i) for i in range(1, 6)} | {"other": noisy(9.0)}

    assert typical_noise(metrics) == {"latency": pytest.approx(0.3 * 2**0.5)}


def test_more_comparisons_share_the_error_rate() -> None:
    few = judge([metric(1.06)] * 5, baseline(STORED), rule(tolerance=0.0, comparisons=1)).verdict
    many = judge([metric(1.06)] * 5, baseline(STORED), rule(tolerance=0.0, comparisons=10_000)).verdict

    assert few.limit is not None
    assert many.limit is not None
    assert few.limit < many.limit


def test_a_busier_machine_makes_a_regression_inconclusive() -> None:
    judgement = judge([metric(1.5)] * 5, baseline(STORED), rule(busier_cores=0.9, cores=2))

    assert judgement.verdict.kind == "inconclusive"
    assert "0.9 cores more" in judgement.verdict.reason


def test_exact_numbers_must_be_equal() -> None:
    assert kind([52, 52], [52] * 10, "exact") == "unchanged"
    assert kind([53], [52] * 10, "exact") == "regressed"
    assert kind([47], [52] * 10, "exact") == "regressed"


def test_exact_numbers_under_other_software_are_incomparable_unless_equal() -> None:
    assert kind([53], [52] * 10, "exact", same_software=False) == "incomparable"
    assert kind([52], [52] * 10, "exact", same_software=False) == "unchanged"


def test_exact_numbers_that_differ_between_launches_are_a_regression() -> None:
    assert kind([52, 53], [52] * 10, "exact") == "regressed"


def test_a_goal_that_is_never_reached_is_a_regression_with_and_without_a_baseline() -> None:
    assert judge([metric(None, "exact")], baseline([52.0] * 10, "exact"), rule()).verdict.kind == "regressed"
    assert judge([metric(None, "exact")], None, rule()).verdict.kind == "regressed"


def test_without_a_baseline_the_verdict_is_missing() -> None:
    assert judge([metric(1.0)], None, rule()).verdict.kind == "missing"


def test_another_direction_is_incomparable() -> None:
    assert judge([metric(1.0, "higher")], baseline(STORED, "lower"), rule()).verdict.kind == "incomparable"


def test_one_stored_launch_is_incomparable_because_its_noise_is_unknown() -> None:
    assert kind([1.0], [1.0]) == "incomparable"


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_values_without_a_ratio_are_incomparable(value: float) -> None:
    assert kind([value], STORED) == "incomparable"


def test_info_is_never_judged() -> None:
    assert judge([metric(99.0, "info")], baseline(STORED), rule()).verdict.kind == "unchanged"


def test_a_stored_metric_that_was_not_measured_is_named() -> None:
    assert not_measured("latency", baseline(STORED)).kind == "incomparable"


def test_unchanged_code_is_rarely_called_a_regression() -> None:
    """2000 comparisons with 10 % noise between launches: at an error rate of 2 % per 50, at most one or two."""
    random.seed(1)

    def run() -> str:
        stored = [random.lognormvariate(0, 0.1) for _ in range(10)]
        current: list[Measurement] = []
        while True:
            current.append(metric(random.lognormvariate(0, 0.1)))
            judgement = judge(current, baseline(stored), rule())
            if not judgement.is_open:
                return judgement.verdict.kind

    assert [run() for _ in range(2000)].count("regressed") <= 3


def test_the_smallest_detectable_slowdown_is_the_labs_rule_of_thumb() -> None:
    """10 stored and 5 new launches, 10 % noise, error rate 0.04 %: k = 3.08, +36 %."""
    assert smallest_detectable(0.10, n_stored=10, n_new=5, alpha=0.0004) == pytest.approx(0.36, abs=0.01)
