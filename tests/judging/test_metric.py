"""The decision rule, case by case, with the numbers written out."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_distbench.judging.entry import make_entry
from pytest_distbench.judging.metric import Rule, judge, not_measured
from pytest_distbench.judging.stats import detectable_slowdown
from pytest_distbench.judging.stored_rule import DRIFT, typical_noise
from pytest_distbench.records.baseline import BaselineMetric
from pytest_distbench.records.case import Case, CaseKey
from pytest_distbench.records.kinds import Better
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement, Summary
from pytest_distbench.records.record import replaced

STORED = [1.00, 1.02, 0.98, 1.01, 0.99, 1.03, 0.97, 1.00, 1.01, 0.99]


wild = st.floats(min_value=-1.0, allow_nan=False, allow_infinity=False) | st.sampled_from([5e-324, 1.7e308])


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


def test_what_the_stored_digits_hide_is_no_change() -> None:
    """A number that never moves is stored as 1.234."""
    settled = judge([metric(1.2344449)], baseline([1.234] * 5), rule(tolerance=0.0, max_launches=1))

    assert settled.verdict.kind == "unchanged"


def test_a_run_of_one_comparison_is_not_red_for_nothing_more_often_than_one_of_many() -> None:
    assert rule(comparisons=1).alpha == rule(comparisons=20).alpha == 0.001
    assert rule(comparisons=50).alpha == pytest.approx(0.0004)


def test_a_change_within_the_tolerance_is_unchanged() -> None:
    assert kind([1.08] * 5, STORED) == "unchanged"


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


def test_what_stays_zero_is_unchanged() -> None:
    assert kind([0.0], [0.0] * 5) == "unchanged"
    assert kind([0.0, 1.0], [0.0] * 5) == "incomparable"


def test_another_unit_is_incomparable() -> None:
    verdict = judge([replaced(metric(1.0), unit="ms")], baseline(STORED), rule()).verdict

    assert (verdict.kind, verdict.reason) == ("incomparable", "the unit was 's', now it is 'ms'")


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


def timed(value: float, *, fastest: float = 0.9, slow: float = 1.2) -> Measurement:
    """A launch whose minimum and p95 are these multiples of its value."""
    summary = Summary(
        n=50,
        minimum=fastest * value,
        p25=value,
        median=value,
        p95=slow * value,
        p99=slow * value,
        mean=value,
        stdev=0.1,
    )
    return Measurement(name="latency", unit="s", better="lower", value=value, summary=summary)


TIMED = BaselineMetric(
    better="lower",
    unit="s",
    launches=STORED,
    minimum=[0.9 * v for v in STORED],
    p95=[(1.15 if i % 2 else 1.25) * v for i, v in enumerate(STORED)],
)


def test_the_fast_side_is_judged_not_the_25th_percentile_alone() -> None:
    """The fastest iterations did not move: half of the change remains, +10 %, and a tolerance of 12 % holds."""
    raised = [timed(1.21 * v, fastest=0.9 / 1.21) for v in STORED]
    verdict = judge(raised, TIMED, rule(tolerance=0.12, max_launches=10)).verdict

    assert verdict.kind == "unchanged"
    assert verdict.ratio == pytest.approx(1.1)


def test_a_slowdown_that_moves_every_iteration_alike_is_a_regression() -> None:
    assert judge([timed(1.2 * v) for v in STORED], TIMED, rule(max_launches=10)).verdict.kind == "regressed"


def test_a_slowdown_that_stretched_the_slow_side_as_load_does_is_inconclusive() -> None:
    busy = [timed(1.2 * v, slow=1.5) for v in STORED]
    verdict = judge(busy, TIMED, rule(max_launches=10)).verdict

    assert verdict.kind == "inconclusive"
    assert "busy machine" in verdict.reason


def test_a_doubling_is_a_regression_however_it_is_spread() -> None:
    assert judge([timed(2 * v, slow=9) for v in STORED], TIMED, rule(max_launches=10)).verdict.kind == "regressed"


def test_a_baseline_without_iterations_is_compared_by_its_values() -> None:
    assert judge([timed(1.5)] * 5, baseline(STORED), rule()).verdict.kind == "regressed"


def test_a_baseline_keeps_the_ends_of_a_series_and_nothing_of_a_number() -> None:
    launches = [
        LaunchRecord(
            index=0,
            outcome="passed",
            wall_s=1.0,
            measurements=[
                timed(1.0),
                replaced(metric(2.0), name="one"),
                replaced(timed(1.0), name="foreign", value=9.0),
            ],
        )
    ]
    case = Case(test="t.py::t", key=CaseKey(case_id="", backend="gloo", launcher="warm"), world_size=2, device="cpu")
    stored = make_entry(case, launches, {}).metrics

    assert (stored["latency"].minimum, stored["latency"].p95) == ([0.9], [1.2])
    assert (stored["one"].minimum, stored["one"].p95) == ([], [])
    assert (stored["foreign"].launches, stored["foreign"].minimum) == ([9.0], [])


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ('"minimum": [1], "p95": [1, 2]', r"one number per launch, found \(2, 1, 2\)"),
        ('"minimum": [1, 2.5], "p95": [1, 3]', r"a launch of 2\.0 cannot have minimum 2\.5 and p95 3\.0"),
    ],
)
def test_ends_that_do_not_belong_to_the_launches_are_refused_where_the_file_is_read(ends: str, message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.json.decode(f'{{"better": "lower", "unit": "s", "launches": [1, 2], {ends}}}', type=BaselineMetric)


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


def test_an_obvious_regression_takes_three_launches_and_a_lesser_one_all() -> None:
    assert not judge([metric(1.5)] * 3, baseline(STORED), rule()).is_open
    assert judge([metric(1.15)] * 3, baseline(STORED), rule()).is_open


def test_a_faster_launch_asks_for_more_only_beyond_the_limit() -> None:
    assert not judge([metric(0.92)], baseline(STORED), rule()).is_open
    assert judge([metric(0.5)], baseline(STORED), rule()).is_open


def test_one_odd_launch_does_not_make_a_regression() -> None:
    """The mean alone would: one launch of ten took fifty times as long."""
    assert kind([1.0] * 9 + [50.0], STORED, max_launches=10) == "inconclusive"


def test_noise_that_hides_a_doubling_is_said_after_one_launch() -> None:
    wild = [1.0, 4.0, 0.3, 2.5, 0.5, 6.0, 1.2, 0.2, 3.0, 1.5]
    judgement = judge([metric(1.2)], baseline(wild), rule())

    assert (judgement.verdict.kind, judgement.is_open) == ("inconclusive", False)
    assert "more than a doubling" in judgement.verdict.reason


def test_a_large_tolerance_is_no_blindness() -> None:
    assert kind([1.5] * 5, STORED, tolerance=3.0) == "unchanged"


def test_the_verdict_says_what_would_have_been_found() -> None:
    verdict = judge([metric(1.0)], baseline(STORED), rule(tolerance=0.0)).verdict

    assert verdict.limit is not None
    assert verdict.detectable is not None
    assert 0 < verdict.limit < verdict.detectable < 0.2


def test_what_the_verdict_says_it_would_find_is_found_in_nine_runs_of_ten() -> None:
    random.seed(2)
    exact = math.log1p(detectable_slowdown(0.05, 10, 5, 0.0004, drift=DRIFT, tolerance=0.1))
    found = 0
    for _ in range(300):
        stored = [random.lognormvariate(0, 0.05) for _ in range(10)]
        found += kind([random.lognormvariate(exact, 0.05) for _ in range(5)], stored) == "regressed"

    assert 0.85 <= found / 300 <= 0.95
