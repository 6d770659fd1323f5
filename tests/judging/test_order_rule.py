"""Values without a ratio: what is beyond doubt is judged, all else is no answer, and never green."""

from __future__ import annotations

import pytest
from support.metrics import STORED, baseline, metric, rule

from pytest_distbench.judging.metric import judge
from pytest_distbench.judging.order_rule import have_ratios, why_nothing_was_timed
from pytest_distbench.judging.pair_rule import PairCircumstances, judge_pairs
from pytest_distbench.records.kinds import Better
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.record import replace
from pytest_distbench.records.verdict import Verdict

GIB = float(2**30)
CLOCK = {"cpu_s": 0.002, "waits": 0.0, "host_s": 0.0012, "exposed": 0.0}


def against_stored(stored: list[float], now: list[float], better: Better = "lower", unit: str = "B") -> Verdict:
    entry = replace(baseline(stored, better), unit=unit)
    return judge([replace(metric(v, better), unit=unit) for v in now], entry, rule(max_launches=len(now))).verdict


def in_turns(old: list[float], now: list[float], better: Better = "lower", unit: str = "B") -> Verdict:
    pairs = [tuple(replace(metric(v, better), unit=unit) for v in pair) for pair in zip(old, now, strict=True)]
    return judge_pairs(pairs, PairCircumstances(tolerance=0.05, comparisons=2, looks=(5, 10))).verdict  # type: ignore[arg-type]


@pytest.mark.parametrize("compare", [against_stored, in_turns])
@pytest.mark.parametrize(
    ("old", "now", "better", "kind"),
    [
        ([0.0] * 10, [4 * GIB] * 10, "lower", "regressed"),
        ([3.3e-6, *[0.0] * 9], [20e-3] * 10, "lower", "regressed"),
        ([100.0] * 10, [0.0] * 10, "higher", "regressed"),
        ([-2.0] * 10, [-1.0] * 10, "lower", "regressed"),
        ([4 * GIB] * 10, [0.0] * 10, "lower", "improved"),
        ([0.0] * 10, [3.0] * 10, "higher", "improved"),
        ([0.0] * 10, [0.0] * 10, "lower", "unchanged"),
        ([0.0] * 10, [0.0] * 9 + [5.0], "lower", "inconclusive"),
        ([0.0] * 9 + [5.0], [0.0] * 10, "lower", "inconclusive"),
        ([-2.0] * 10, [-1.99] * 10, "lower", "inconclusive"),
    ],
)
def test_what_is_worse_in_every_launch_is_a_regression(
    compare: type[Verdict], old: list[float], now: list[float], better: Better, kind: str
) -> None:
    assert compare(old, now, better).kind == kind  # type: ignore[call-arg, arg-type]


def test_a_regression_to_nothing_is_one_at_any_tolerance() -> None:
    entry = baseline([100.0] * 10, "higher")

    assert judge([metric(0.0, "higher")] * 5, entry, rule(tolerance=3.0)).verdict.kind == "regressed"


def test_it_says_from_what_to_what() -> None:
    assert against_stored([0.0] * 10, [4 * GIB] * 5).reason == "0 B -> 4 GiB in every launch"


def test_what_scatters_needs_more_than_order() -> None:
    """Three launches beyond the stored two, as far as those are from each other."""
    verdict = against_stored([0.0, 1.0], [1.2, 2.0, 2.8])

    assert verdict.kind == "inconclusive"
    assert "no ratio" in verdict.reason


def test_one_launch_asks_for_more() -> None:
    judgement = judge([metric(1.0)], baseline([0.0] * 10), rule())

    assert (judgement.verdict.kind, judgement.is_open) == ("inconclusive", True)


def test_a_busier_machine_makes_it_inconclusive_too() -> None:
    verdict = judge([metric(1.0)] * 5, baseline([0.0] * 10), rule(busier_cores=0.9, cores=2)).verdict

    assert (verdict.kind, "0.9 cores more" in verdict.reason) == ("inconclusive", True)


@pytest.mark.parametrize(
    ("unit", "values", "is_advised"),
    [("", [0.0, 2.0], True), ("retries", [0.0, 2.0], True), ("", [0.0, 0.5], False), ("B", [0.0, 2.0], False)],
)
def test_only_a_count_is_to_be_recorded_as_exact(unit: str, values: list[float], is_advised: bool) -> None:
    verdict = against_stored([0.0] * 5, values, unit=unit)

    assert (verdict.kind, "better='exact'" in verdict.reason) == ("inconclusive", is_advised)


def clock(value: float) -> Measurement:
    return replace(metric(value), companions=CLOCK)


@pytest.mark.parametrize(
    ("stored", "kind"), [([0.0] * 10, "inconclusive"), (STORED, "lost"), ([0.0, *STORED[1:]], "lost"), ([1e-6], "lost")]
)
def test_a_clock_that_reads_nothing_is_lost_where_there_was_a_time(stored: list[float], kind: str) -> None:
    verdict = judge([clock(0.0)] * 5, baseline(stored), rule()).verdict

    assert verdict.kind == kind
    assert "nothing ran on the device in this loop" in verdict.reason
    assert "took 1.2 ms per iteration" in verdict.reason


def test_a_clock_that_reads_nothing_is_no_match_for_a_revision() -> None:
    pairs = [(clock(v), clock(0.0)) for v in STORED]

    under = PairCircumstances(tolerance=0.05, comparisons=2, looks=(10,))

    assert judge_pairs(pairs, under).verdict.kind == "lost"


def test_only_clocks_time_nothing() -> None:
    assert why_nothing_was_timed(metric(0.0)) == ""
    assert why_nothing_was_timed(clock(1e-9)) == ""
    assert have_ratios(1e-300, 1.0)
    assert not have_ratios(1.0, 0.0)
