"""The decision rule for pairs, case by case, and its error rates by simulation."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence

import pytest
from scipy import stats

from pytest_distbench.judging.judgement import Draft, Judgement
from pytest_distbench.judging.metric import RULES, Circumstances
from pytest_distbench.judging.pair_rule import (
    FIRST_LOOK,
    LAST_LOOK,
    PairCircumstances,
    judge_pairs,
    looks,
    power,
    smallest_slowdown,
)
from pytest_distbench.records.baseline import BaselineMetric
from pytest_distbench.records.kinds import METRIC_KINDS, Better, MetricKind
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.record import replace
from pytest_distbench.records.verdict import Verdict

QUIET = (1.00, 1.01, 0.99, 1.005, 0.995)


def metric(value: float | None, better: Better = "lower") -> Measurement:
    return Measurement(name="latency", unit="s", better=better, value=value)


def rule(**changes: object) -> PairCircumstances:
    return PairCircumstances(**({"tolerance": 0.05, "comparisons": 2, "looks": (5, 10, 20)} | changes))  # type: ignore[arg-type]


def judged(
    ratios: list[float], better: Better = "lower", reference: float | None = 2.0, **changes: object
) -> tuple[Verdict, bool]:
    pairs = [(metric(reference, better), metric(None if reference is None else reference * r, better)) for r in ratios]
    return judge_pairs(pairs, rule(**changes))


def simulated(rng: random.Random, slowdown: float, sigma: float) -> str:
    """The verdict at the end of the looks on made-up pairs."""
    ratios: list[float] = []
    for look in rule().looks:
        ratios += [math.exp(rng.gauss(math.log1p(slowdown), sigma)) for _ in range(look - len(ratios))]
        verdict, is_open = judged(ratios)
        if not is_open:
            break
    return verdict.kind


def test_looks_grow_from_the_first_to_the_most() -> None:
    assert looks(FIRST_LOOK, LAST_LOOK) == (5, 7, 10, 14, 20, 28)
    assert looks(5, 12) == (5, 7, 10, 12)
    assert looks(8, 4) == (8,)


def test_fewer_than_three_pairs_are_never_judged() -> None:
    assert looks(1, 1) == (3,)


def test_equal_pairs_are_unchanged_at_the_first_look() -> None:
    verdict, is_open = judged(list(QUIET))

    assert (verdict.kind, is_open, verdict.launches) == ("unchanged", False, 5)


def test_a_slowdown_in_every_pair_is_a_regression_at_the_first_look() -> None:
    verdict, is_open = judged([1.1 * r for r in QUIET])

    assert (verdict.kind, is_open) == ("regressed", False)
    assert verdict.ratio == pytest.approx(1.1, rel=1e-3)
    assert verdict.limit == pytest.approx(0.05)


def test_a_smaller_throughput_is_a_regression() -> None:
    assert judged([0.9 * r for r in QUIET], "higher")[0].kind == "regressed"
    assert judged([0.9 * r for r in QUIET], "lower")[0].kind == "improved"


def test_a_clear_slowdown_below_the_tolerance_is_unchanged() -> None:
    assert judged([1.02 * r for r in QUIET])[0].kind == "unchanged"
    assert judged([1.02 * r for r in QUIET * 4], tolerance=0.005)[0].kind == "regressed"


def test_noisy_pairs_ask_for_more_and_end_inconclusive_with_what_could_have_been_seen() -> None:
    ratios = [0.7, 1.5, 0.8, 1.4, 1.0]
    verdict, is_open = judged(ratios * 4)

    assert judged(ratios)[1]
    assert (verdict.kind, is_open) == ("inconclusive", False)
    assert verdict.detectable is not None
    assert f"the smallest slowdown we could have seen is +{verdict.detectable:.0%}" in verdict.reason


def test_a_value_that_only_the_reference_has_is_a_regression() -> None:
    assert judge_pairs([(metric(2.0), metric(None))] * 5, rule())[0].kind == "regressed"


def test_no_value_on_either_side_is_incomparable() -> None:
    assert judged([1.0] * 5, reference=None)[0].kind == "incomparable"


def test_another_unit_is_incomparable() -> None:
    verdict = judge_pairs([(metric(1.0), replace(metric(1.0), unit="ms"))] * 5, rule())[0]

    assert (verdict.kind, verdict.reason) == ("incomparable", "the unit was 's', now it is 'ms'")


def test_a_metric_the_reference_does_not_record_is_missing() -> None:
    assert judge_pairs([(None, metric(1.0))] * 5, rule())[0].kind == "missing"


def test_a_metric_only_the_reference_records_is_lost() -> None:
    assert judge_pairs([(metric(1.0), None)] * 5, rule())[0].kind == "lost"


def test_exact_numbers_are_compared_exactly_and_at_once() -> None:
    assert judged([1.0], "exact") == (judged([1.0], "exact")[0], False)
    assert judged([1.0], "exact")[0].kind == "unchanged"
    assert judged([1.0 + 1e-12], "exact")[0].kind == "regressed"


def test_exact_numbers_under_another_python_are_incomparable_unless_equal() -> None:
    assert judged([1.5], "exact", same_software=False)[0].kind == "incomparable"
    assert judged([1.0], "exact", same_software=False)[0].kind == "unchanged"


def test_the_error_rate_is_shared_over_comparisons_and_looks() -> None:
    shares = [rule(comparisons=10).alpha(look) for look in rule().looks]

    assert sum(shares) == pytest.approx(0.02 / 10)
    assert shares == sorted(shares)


def test_power_is_that_of_the_noncentral_t_where_the_tolerance_does_not_matter() -> None:
    """Ten pairs, noise 5 %, slowdown 8 %, against SciPy."""
    one_look = rule(looks=(10,), tolerance=0.0)
    shift = math.log1p(0.08) / (0.05 / math.sqrt(10))
    expected = stats.nct.sf(stats.t.ppf(1 - one_look.alpha(10), 9), 9, shift)

    assert power(0.08, 0.05, one_look) == pytest.approx(expected, abs=0.002)


def test_without_noise_everything_above_the_tolerance_is_found() -> None:
    assert smallest_slowdown(0.0, rule()) == pytest.approx(0.05, abs=1e-6)


def test_hopeless_noise_finds_nothing() -> None:
    assert smallest_slowdown(100.0, rule()) == math.inf


@pytest.mark.parametrize("sigma", [0.02, 0.05, 0.1])
def test_the_printed_power_is_the_one_observed(sigma: float) -> None:
    """Nine of ten runs at the detectable slowdown are red; more looks may find a little more."""
    rng = random.Random(7)
    slowdown = smallest_slowdown(sigma, rule())
    red = statistics.fmean(simulated(rng, slowdown, sigma) == "regressed" for _ in range(200))

    assert 0.83 <= red <= 0.97


@pytest.mark.parametrize("sigma", [0.02, 0.1, 0.3])
def test_unchanged_code_is_hardly_ever_called_a_regression(sigma: float) -> None:
    """At 1 % per comparison eight of 400 is already too many."""
    rng = random.Random(8)

    assert [simulated(rng, 0.0, sigma) for _ in range(400)].count("regressed") < 8


def test_to_a_rule_from_outside_the_reference_is_a_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    def slower_at_most(
        draft: Draft, current: Sequence[Measurement], stored: BaselineMetric, rule: Circumstances
    ) -> Judgement:
        assert (len(current), rule.max_launches) == (5, 20)
        is_so = max(v or 0 for v in draft.current) > max(v or 0 for v in stored.launches)
        return draft.settle("regressed" if is_so else "unchanged")

    monkeypatch.setitem(RULES, "slowest", slower_at_most)
    monkeypatch.setitem(METRIC_KINDS, "mine", MetricKind(summary="s", reduce="max", rule="slowest", sign=1))

    assert judged([1.0, 1.0, 1.0, 1.0, 1.1], "mine")[0].kind == "regressed"
    assert judged([1.0, 1.0, 1.0, 1.0, 0.9], "mine")[0].kind == "unchanged"
    assert judged([1.0] * 5, "mine", None)[0].kind == "incomparable"
