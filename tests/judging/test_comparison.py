"""One metric compared with its baseline: the table of decision rules, and the short ones."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.metrics import STORED, baseline, baseline_of, judge, judge_pairs, metric, rule

from pytest_distbench.errors import ExtensionError
from pytest_distbench.judging.comparison import Comparison
from pytest_distbench.judging.deciders import RULES
from pytest_distbench.judging.entry import stored_samples
from pytest_distbench.judging.terms import why_nothing_was_timed
from pytest_distbench.judging.thresholds import Circumstances
from pytest_distbench.records.kinds import METRIC_KINDS, Better, MetricKind
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import Finding

MIB = 2**20
MEMORY_RULE_STORED = (200.0, 203.0, 198.0)


def memory(mebibytes: float) -> Sample:
    return Sample(name="peak_memory", unit="B", better="memory", value=mebibytes * MIB, facts={"rank": 1}, identity={})


def ranks(*mebibytes: float) -> Sample:
    return replace(memory(max(mebibytes)), values=[v * MIB for v in mebibytes])


def kinds(*mebibytes: float, stored: tuple[float, ...] = MEMORY_RULE_STORED, most: int = 10) -> tuple[str, bool]:
    rule = Circumstances(tolerance=0.2, comparisons=1, max_launches=most, busier_cores=2.0, cores=2)
    baseline = baseline_of([v * MIB for v in stored], "memory", "B")
    found = judge([memory(v) for v in mebibytes], baseline, rule)
    return found.kind, found.is_open


def test_twice_the_memory_is_red_after_three_launches_and_one_in_three_is_not() -> None:
    assert kinds(400) == ("regressed", True)
    assert kinds(400, 401) == ("regressed", True)
    assert kinds(400, 401, 402) == ("regressed", False)
    assert kinds(400, most=1) == ("regressed", False)

    assert kinds(400, 200) == ("unchanged", False)
    assert kinds(400, 400, 200) == ("inconclusive", False)

    # No test asks for it: one of bounds alone has no baseline, and older baselines have no memory
    verdict = judge([memory(400)], (), Circumstances(tolerance=0.2, comparisons=1, max_launches=1))
    assert (verdict.kind, verdict.is_judged) == ("unchanged", False)


def test_the_message_names_the_rank_that_needs_most() -> None:
    rule = Circumstances(tolerance=0.2, comparisons=1, max_launches=1)
    baseline = baseline_of([200.0 * MIB], "memory", "B")
    verdict = judge([memory(400)], baseline, rule)

    assert verdict.reason == "rank 1 needs the most memory"
    assert verdict.ratio == 2.0
    assert verdict.threshold == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("now", "kind"), [(200, "unchanged"), (242, "unchanged"), (245, "regressed"), (165, "unchanged"), (100, "improved")]
)
def test_a_fifth_is_accepted_beyond_what_the_baseline_has_seen(now: float, kind: str) -> None:
    assert kinds(now, now, now)[0] == kind


@pytest.mark.parametrize(("stored", "now", "kind"), [(1, 15, "unchanged"), (0, 16, "unchanged"), (0, 17, "regressed")])
def test_a_few_mebibytes_are_no_change_whatever_share_they_are(stored: float, now: float, kind: str) -> None:
    assert kinds(now, now, now, stored=(stored,) * 3)[0] == kind


@pytest.mark.parametrize(
    ("now", "kind"),
    [
        ((150, 20), "unchanged"),
        ((20, 150), "unchanged"),
        ((150, 150), "regressed"),
        ((150, 30), "unchanged"),
        ((150, 150, 150), "unchanged"),
    ],
)
def test_a_rank_that_needs_less_than_another_is_judged_too(now: tuple[float, ...], kind: str) -> None:
    stored = stored_samples([ranks(150, 20), ranks(19, 149)])
    under = Circumstances(tolerance=0.2, comparisons=1, max_launches=3)
    verdict = judge([ranks(*now)] * 3, stored, under)

    assert judge([ranks(150, 150), ranks(150), ranks(150)], stored, under).kind == "unchanged"
    assert stored[0].values == [150 * MIB, 20 * MIB]
    assert verdict.kind == kind
    if kind == "regressed":
        assert verdict.reason == "2 ranks need 150 MiB or more; in the baseline 1 did"


def test_memory_is_judged_by_the_same_rule_in_pairs() -> None:
    rule = Circumstances(tolerance=0.2, comparisons=1, looks=(5,))
    same = judge_pairs([(memory(200), memory(230))] * 5, rule)
    doubled = judge_pairs([(memory(200), memory(400))] * 5, rule)
    unknown = judge_pairs([(None, memory(400))] * 5, rule)

    assert (same.kind, doubled.kind) == ("unchanged", "regressed")
    assert judge_pairs([(ranks(150, 20), ranks(150, 150))] * 5, rule).kind == "regressed"
    assert not unknown.is_judged


GIB = float(2**30)
TIMES = {"cpu_s": 0.002, "waits": 0.0, "host_s": 0.0012, "exposed": 0.0}


def against_stored(stored: list[float], now: list[float], better: Better = "lower", unit: str = "B") -> Finding:
    entry = baseline_of(stored, better, unit)
    return judge([replace(metric(v, better), unit=unit) for v in now], entry, rule(max_launches=len(now)))


def interleaved(old: list[float], now: list[float], better: Better = "lower", unit: str = "B") -> Finding:
    pairs = [tuple(replace(metric(v, better), unit=unit) for v in pair) for pair in zip(old, now, strict=True)]
    return judge_pairs(pairs, Circumstances(tolerance=0.05, comparisons=2, looks=(5, 10)))  # type: ignore[arg-type]


@pytest.mark.parametrize("compare", [against_stored, interleaved])
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
    compare: type[Finding], old: list[float], now: list[float], better: Better, kind: str
) -> None:
    assert compare(old, now, better).kind == kind  # type: ignore[call-arg, arg-type]


@pytest.mark.parametrize(
    ("stored", "better", "reason"),
    [
        ([-5.0, 5.0, 5.0], "lower", "a launch of the baseline took -5 s: record it again"),
        ([5.0, 5.0, 7.0], "exact", "differs between launches of the baseline (5 s, 7 s), so it is not exact"),
    ],
)
def test_a_baseline_that_was_edited_into_nonsense_is_unusable(stored: list[float], better: Better, reason: str) -> None:
    found = judge([metric(7.0, better)] * 3, baseline(stored, better), rule(max_launches=3))

    assert (found.code, found.reason) == ("unusable-baseline", reason)


def test_a_difference_without_a_ratio_names_both_values_and_is_inconclusive_where_it_scatters() -> None:
    entry = baseline([100.0] * 10, "higher")
    assert judge([metric(0.0, "higher")] * 5, entry, rule(tolerance=3.0)).kind == "regressed"

    assert against_stored([0.0] * 10, [4 * GIB] * 5).reason == "0 B -> 4 GiB in every launch"
    assert against_stored([9.0] * 10, [-0.5, 1.0, 1.0, 1.0], unit="s").kind == "inconclusive", "no time is negative"

    # Three launches beyond the stored two, as far as those are from each other
    verdict = against_stored([0.0, 1.0], [1.2, 2.0, 2.8])
    assert verdict.kind == "inconclusive"
    assert "no ratio" in verdict.reason

    judgement = judge([metric(1.0)], baseline([0.0] * 10), rule())
    assert (judgement.kind, judgement.is_open) == ("inconclusive", True)

    verdict = judge([metric(1.0)] * 5, baseline([0.0] * 10), rule(busier_cores=0.9, cores=2))
    assert (verdict.kind, "0.9 cores more" in verdict.reason) == ("inconclusive", True)


@pytest.mark.parametrize(
    ("unit", "values", "is_advised"),
    [("", [0.0, 2.0], True), ("retries", [0.0, 2.0], True), ("", [0.0, 0.5], False), ("B", [0.0, 2.0], False)],
)
def test_only_a_count_is_to_be_recorded_as_exact(unit: str, values: list[float], is_advised: bool) -> None:
    verdict = against_stored([0.0] * 5, values, unit=unit)

    assert (verdict.kind, "better='exact'" in verdict.reason) == ("inconclusive", is_advised)


def clock(value: float) -> Sample:
    return replace(metric(value), companions=TIMES)


@pytest.mark.parametrize(
    ("stored", "kind"),
    [([0.0] * 10, "inconclusive"), (STORED, "missing"), ([0.0, *STORED[1:]], "missing"), ([1e-6], "missing")],
)
def test_a_timing_of_zero_is_missing_if_the_baseline_has_a_time(stored: list[float], kind: str) -> None:
    verdict = judge([clock(0.0)] * 5, baseline(stored), rule())

    assert verdict.kind == kind
    assert "nothing ran on the device in this loop" in verdict.reason
    assert "took 1.2 ms per iteration" in verdict.reason


def test_a_timing_of_zero_is_missing_in_pairs_and_other_numbers_may_be_zero() -> None:
    pairs = [(clock(v), clock(0.0)) for v in STORED]
    assert judge_pairs(pairs, Circumstances(tolerance=0.05, comparisons=2, looks=(10,))).kind == "missing"

    assert why_nothing_was_timed(metric(0.0)) == ""
    assert why_nothing_was_timed(clock(1e-9)) == ""


wild = st.floats(min_value=-1.0, allow_nan=False, allow_infinity=False) | st.sampled_from([5e-324, 1.7e308])


def kind(current: list[float], stored: list[float], better: Better = "lower", **changes: object) -> str:
    return judge([metric(v, better) for v in current], baseline(stored, better), rule(**changes)).kind


def test_a_change_beyond_the_tolerance_is_judged_by_its_direction() -> None:
    verdict = judge([metric(1.5)] * 5, baseline(STORED), rule())
    assert (verdict.kind, verdict.threshold) == ("regressed", pytest.approx(0.1))
    assert verdict.ratio == pytest.approx(1.5, 1e-3)

    assert kind([0.5] * 5, STORED, "higher") == "regressed"
    assert kind([1.5] * 5, STORED, "higher") == "improved"

    # A number that never moves is stored as 1.234
    verdict = judge([metric(1.2344449)], baseline([1.234] * 5), rule(tolerance=0.0, max_launches=1))
    assert verdict.kind == "unchanged"

    assert rule(comparisons=1).alpha == rule(comparisons=20).alpha == 0.001
    assert rule(comparisons=50).alpha == pytest.approx(0.0004)


def test_exact_numbers_must_be_equal_digit_by_digit_under_the_same_software() -> None:
    assert kind([52, 52], [52] * 10, "exact") == "unchanged"
    assert kind([53], [52] * 10, "exact") == "changed"
    assert kind([47], [52] * 10, "exact") == "changed"

    entry = msgspec.json.decode(msgspec.json.encode(baseline_of([2**60], "exact", "")), type=list[Sample])
    assert judge([replace(metric(2**60, "exact"), unit="")], entry, rule()).kind == "unchanged"
    verdict = judge([replace(metric(2**60 + 1, "exact"), unit="")], entry, rule())
    assert verdict.kind == "changed"
    assert verdict.reason == "exact: 1,152,921,504,606,846,976 -> 1,152,921,504,606,846,977"

    assert kind([53], [52] * 10, "exact", same_software=False) == "inconclusive"
    assert kind([52], [52] * 10, "exact", same_software=False) == "unchanged"

    assert kind([52, 53], [52] * 10, "exact") == "changed"
    assert kind([52, 53], [52, 53], "exact") == "inconclusive"

    assert judge([metric(None, "exact")], baseline([52.0] * 10, "exact"), rule()).kind == "regressed"
    assert judge([metric(None, "exact")], (), rule()).kind == "regressed"


def test_what_cannot_be_compared_is_missing_or_incomparable_and_information_never_judged() -> None:
    assert judge([metric(1.0)], (), rule()).kind == "new"

    assert judge([metric(1.0, "higher")], baseline(STORED, "lower"), rule()).kind == "inconclusive"

    assert kind([1.0], [1.0]) == "inconclusive"

    verdict = judge([replace(metric(1.0), unit="ms")], baseline(STORED), rule())
    assert (verdict.kind, verdict.reason) == ("inconclusive", "the unit was 's', now it is 'ms'")

    assert judge([metric(99.0, "info")], baseline(STORED), rule()).kind == "unchanged"


@pytest.mark.parametrize(
    ("series", "reason"),
    [([1, 2, 3], ""), ([9, 2, 3], "exact: value 1 of 3 was 1 and is 9"), ([1, 2, 3, 3], "exact: 3 values became 4")],
)
def test_of_an_exact_series_every_value_counts(series: list[float], reason: str) -> None:
    then = replace(metric(3, "exact"), values=[1, 2, 3])
    verdict = judge([replace(then, values=series)], stored_samples([then, then]), rule())

    assert (verdict.kind, verdict.reason) == ("changed" if reason else "unchanged", reason)


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
    for number in (found.threshold, found.mde):
        assert number is None or number >= 0


def test_a_slowdown_that_may_be_the_cards_is_inconclusive_and_an_improvement_is_one() -> None:
    why = "GPU 0 was shared with python (pid 1)"
    verdict = judge([metric(1.5)] * 5, baseline(STORED), rule(disturbance=why))

    assert (verdict.kind, verdict.reason) == ("inconclusive", f"slower, but {why}")
    assert kind([0.5] * 5, STORED, disturbance=why) == "improved"
    assert kind([1.0] * 5, STORED, disturbance=why) == "unchanged"


def doubled(c: Comparison) -> Finding | None:
    """A decider from outside."""
    return c.finding("beyond-threshold", "it doubled") if c.new[0] == 2 * (c.old[0] or 0) else None


def test_a_rule_that_is_not_there_is_no_green(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRIC_KINDS, "mine", MetricKind(summary="s", reduce="max", rule="nosiy", sign=1))

    with pytest.raises(ExtensionError, match="the metric kind 'mine' has no rule 'nosiy': known are "):
        judge([metric(2.0, "mine")], baseline([1.0], "mine"), rule())


def test_a_rule_from_outside_decides_and_asks_for_launches_as_long_as_there_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(RULES, "doubled", (doubled, lambda c: c.finding("within-threshold", is_open=True)))
    monkeypatch.setitem(METRIC_KINDS, "mine", MetricKind(summary="s", reduce="max", rule="doubled", sign=1))
    measured = metric(2.0, "mine")
    verdict = judge([measured], baseline([1.0, 1.0], "mine"), rule())
    assert (verdict.kind, verdict.reason, verdict.ratio) == ("regressed", "it doubled", 2.0)
    assert judge([measured], (), rule()).kind == "new"

    stored = baseline([2.0], "mine")
    assert judge([measured], stored, rule(max_launches=2)).is_open
    assert not judge([measured] * 2, stored, rule(max_launches=2)).is_open
