"""The decision rule, case by case, with the numbers written out."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.metrics import STORED, baseline, metric, rule

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.judging.entry import stored_metric
from pytest_distbench.judging.judgement import Draft, Judgement
from pytest_distbench.judging.metric import RULES, Circumstances, judge
from pytest_distbench.records.baseline import BaselineMetric
from pytest_distbench.records.kinds import METRIC_KINDS, Better, MetricKind
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.record import replace

wild = st.floats(min_value=-1.0, allow_nan=False, allow_infinity=False) | st.sampled_from([5e-324, 1.7e308])


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


def test_what_the_stored_digits_hide_is_no_change() -> None:
    """A number that never moves is stored as 1.234."""
    settled = judge([metric(1.2344449)], baseline([1.234] * 5), rule(tolerance=0.0, max_launches=1))

    assert settled.verdict.kind == "unchanged"


def test_a_run_of_one_comparison_is_not_red_for_nothing_more_often_than_one_of_many() -> None:
    assert rule(comparisons=1).alpha == rule(comparisons=20).alpha == 0.001
    assert rule(comparisons=50).alpha == pytest.approx(0.0004)


def test_a_change_within_the_tolerance_is_unchanged() -> None:
    assert kind([1.08] * 5, STORED) == "unchanged"


def test_exact_numbers_must_be_equal() -> None:
    assert kind([52, 52], [52] * 10, "exact") == "unchanged"
    assert kind([53], [52] * 10, "exact") == "regressed"
    assert kind([47], [52] * 10, "exact") == "regressed"


def test_integers_are_compared_digit_by_digit() -> None:
    entry = msgspec.json.decode(msgspec.json.encode(replace(baseline([2**60], "exact"), unit="")), type=BaselineMetric)

    assert judge([replace(metric(2**60, "exact"), unit="")], entry, rule()).verdict.kind == "unchanged"
    verdict = judge([replace(metric(2**60 + 1, "exact"), unit="")], entry, rule()).verdict
    assert verdict.kind == "regressed"
    assert verdict.reason == "exact: 1,152,921,504,606,846,976 -> 1,152,921,504,606,846,977"


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


def test_another_unit_is_incomparable() -> None:
    verdict = judge([replace(metric(1.0), unit="ms")], baseline(STORED), rule()).verdict

    assert (verdict.kind, verdict.reason) == ("incomparable", "the unit was 's', now it is 'ms'")


def test_info_is_never_judged() -> None:
    assert judge([metric(99.0, "info")], baseline(STORED), rule()).verdict.kind == "unchanged"


@pytest.mark.parametrize(
    ("series", "reason"),
    [
        ([1, 2, 3], ""),
        ([9, 2, 3], "exact: value 1 of 3 was 1 and is 9"),
        ([1, 2, 3, 3], "exact: 3 values became 4"),
    ],
)
def test_of_an_exact_series_every_value_counts(series: list[float], reason: str) -> None:
    then = replace(metric(3, "exact"), series=[1, 2, 3])
    verdict = judge([replace(then, series=series)], stored_metric([then, then], tolerance=None), rule()).verdict

    assert (verdict.kind, verdict.reason) == ("regressed" if reason else "unchanged", reason)


@pytest.mark.parametrize("better", ["lower", "higher"])
@given(
    stored=st.lists(st.none() | wild, min_size=1, max_size=6),
    new=st.lists(st.none() | wild, min_size=1, max_size=6),
    tolerance=st.floats(0, 1e6),
    comparisons=st.integers(0, 10**6),
)
@example(stored=[None, 1.0, 1.0], new=[None, 2.0], tolerance=0.0, comparisons=0)
def test_every_input_gets_a_verdict_and_the_loop_ends(
    better: Better, stored: list[float | None], new: list[float | None], tolerance: float, comparisons: int
) -> None:
    given_rule = rule(tolerance=tolerance, comparisons=comparisons, max_launches=len(new))
    found = judge([metric(v, better) for v in new], baseline(stored, better), given_rule)

    assert not found.is_open
    for number in (found.verdict.limit, found.verdict.detectable):
        assert number is None or number >= 0


def test_a_slowdown_that_may_be_the_cards_is_inconclusive_and_an_improvement_is_one() -> None:
    why = "GPU 0 was shared with python (pid 1)"
    verdict = judge([metric(1.5)] * 5, baseline(STORED), rule(disturbance=why)).verdict

    assert (verdict.kind, verdict.reason) == ("inconclusive", f"slower, but {why}")
    assert kind([0.5] * 5, STORED, disturbance=why) == "improved"
    assert kind([1.0] * 5, STORED, disturbance=why) == "unchanged"


def doubled(draft: Draft, current: Sequence[Measurement], stored: BaselineMetric, rule: Circumstances) -> Judgement:
    """A rule from outside."""
    del current, rule
    is_so = draft.current[0] == 2 * (stored.launches[0] or 0)
    return draft.settle("regressed", "it doubled") if is_so else draft.settle("unchanged", is_open=True)


@pytest.fixture
def of_doubling(monkeypatch: pytest.MonkeyPatch) -> Measurement:
    """A measurement of 2 s of a kind whose rule is ours."""
    monkeypatch.setitem(RULES, "doubled", doubled)
    monkeypatch.setitem(METRIC_KINDS, "mine", MetricKind(summary="s", reduce="max", rule="doubled", sign=1))
    return metric(2.0, "mine")


def test_a_rule_from_outside_decides(of_doubling: Measurement) -> None:
    verdict = judge([of_doubling], baseline([1.0, 1.0], "mine"), rule()).verdict

    assert (verdict.kind, verdict.reason, verdict.ratio) == ("regressed", "it doubled", 2.0)
    assert judge([of_doubling], None, rule()).verdict.kind == "missing"


def test_it_asks_for_launches_as_long_as_there_may_be_one(of_doubling: Measurement) -> None:
    stored = baseline([2.0], "mine")

    assert judge([of_doubling], stored, rule(max_launches=2)).is_open
    assert not judge([of_doubling] * 2, stored, rule(max_launches=2)).is_open


def test_a_kind_of_a_rule_that_there_is_not_is_told_before_there_is_a_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRIC_KINDS, "mine", MetricKind(summary="s", reduce="max", rule="nosuch", sign=1))

    with pytest.raises(
        ConfigurationError, match=r"METRIC_KINDS\['mine'\]: there is no rule 'nosuch'; wanted one of noisy"
    ):
        judge([metric(1.0, "mine")], None, rule())
