"""What bounds make of verdicts: they come before any comparison, and hold without one."""

from __future__ import annotations

from typing import Any

import pytest
from support.results import verdict
from support.stores import launches

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.judging.bounds import carry_over, check_measured, judge_bounds, plausible
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import LINK_PEAK, Bound, Sample, metric_key
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import Finding

WHERE = "marker of test_x"
AT_4K = {"message_bytes": 4096}


def judge(made: list[LaunchRecord], *asked: tuple[str, Any], code: str = "no-baseline", reason: str = "r") -> Finding:
    """The finding on the only metric, whose comparison finds this."""
    [metric] = made[0].measurements
    given = verdict(code, metric=metric.key, at=metric.at, unit=metric.unit, better=metric.better, reason=reason)
    bounds = [(name, value, WHERE) for name, value in asked]
    [found] = judge_bounds([given], made, bounds)
    return found


@pytest.mark.parametrize(
    "reference", ["no-baseline", "within-threshold", "better", "beyond-threshold", "other-workload", "noise"]
)
def test_a_violated_bound_goes_before_the_verdict_of_the_baseline(reference: str) -> None:
    found = judge(launches(0.03, 0.031, 0.029), ("step", "20ms"), code=reference)

    assert (found.kind, found.is_failure) == ("regressed", True)
    assert found.reason == "30 ms, bound: at most 20 ms (marker of test_x)"


def test_a_bound_is_of_a_number_and_a_time_below_zero_or_no_value_keeps_none() -> None:
    assert judge(launches(-0.005), ("step", "20ms")).kind == "regressed"
    assert judge(launches(-0.005, unit=""), ("step", 0.02)).kind == "unchanged"

    given = [replace(verdict("no-baseline"), is_open=True)]
    assert judge_bounds(given, launches(0.01), [("other", 1, WHERE)]) == given

    found = judge(launches(None, better="steps", unit="steps"), ("step", "<= 300 steps"))
    assert found.reason == "no value, bound: at most 300 steps (marker of test_x)"

    held = judge(launches(1.0, better="info", unit=""), ("step", "<= 2"), code="within-threshold")
    assert (held.kind, held.is_judged, held.reason) == ("unchanged", True, "")
    assert not judge(launches(1.0, better="info"), code="within-threshold").is_judged

    bound = Bound(side="most", value=0.02, where="rank.record at a.py:3")
    assert judge(launches(0.03, bounds=[bound])).reason.endswith("(rank.record at a.py:3)")


@pytest.mark.parametrize(
    ("reference", "kind"),
    [("no-baseline", "unchanged"), ("within-threshold", "unchanged"), ("beyond-threshold", "regressed")],
)
def test_a_bound_that_holds_judges_where_nothing_else_does(reference: str, kind: str) -> None:
    found = judge(launches(0.01), ("step", "20ms"), code=reference)

    assert (found.kind, found.is_open) == (kind, False)
    assert found.bounds == [Bound(side="most", value=0.02, where=WHERE)]


@pytest.mark.parametrize(
    ("asked", "kind"), [([], "regressed"), ([("step", "<= 20ms")], "unchanged"), ([("step", ">= 1ms")], "regressed")]
)
def test_a_bound_of_the_test_replaces_the_plugins_own_of_its_side(asked: list[tuple[str, Any]], kind: str) -> None:
    own = Bound(side="most", value=0.0, where="elastic(...)", is_default=True)

    found = judge(launches(0.01, better="exact", bounds=[own]), *asked)

    assert found.kind == kind
    assert (own in found.bounds) == (kind == "regressed")


@pytest.mark.parametrize(
    ("name", "values", "reference", "kind", "is_open"),
    [
        ("scaling_efficiency", (1.21, 1.19, 1.3), "no-baseline", "inconclusive", False),
        ("scaling_efficiency", (1.21, 1.19, 1.3), "within-threshold", "inconclusive", False),
        ("weak_efficiency", (2.1, 2.0, 1.9), "better", "inconclusive", False),
        ("efficiency", (1.21,), "within-threshold", "unchanged", True),
        ("efficiency", (1.21, 0.98, 1.3), "within-threshold", "unchanged", False),
        ("efficiency", (1.03, 1.02, 1.04), "within-threshold", "unchanged", False),
        ("efficiency", (1.21, 1.19, 1.3), "beyond-threshold", "regressed", False),
        ("speedup", (1.21, 1.19, 1.3), "within-threshold", "unchanged", False),
    ],
)
def test_an_efficiency_above_one_in_each_launch_is_inconclusive(
    name: str, values: tuple[float, ...], reference: str, kind: str, is_open: bool
) -> None:
    metric = Sample(name=name, unit="", better="higher", value=None)
    made = launches(*values, name=name, unit="", better="higher", bounds=plausible(metric))

    found = judge(made, code=reference)

    assert (found.kind, found.is_open) == (kind, is_open)
    assert found.bounds == []
    assert (kind == "inconclusive") == found.reason.startswith(f"{min(values)} or more in each of 3 launches: ")


@pytest.mark.parametrize(
    ("values", "kind", "is_open"),
    [
        ((0.03,), "regressed", True),
        ((0.03, 0.01), "unchanged", True),
        ((0.03, 0.01, 0.01), "unchanged", False),
        ((0.03, 0.03, 0.01), "regressed", False),
        ((0.01,), "unchanged", False),
        ((None,), "regressed", True),
        ((None, None, 0.01), "regressed", False),
        ((None, 0.01, 0.01), "unchanged", False),
        ((None, 0.03, 0.01), "regressed", False),
    ],
)
def test_the_median_of_three_launches_decides_on_noise(
    values: tuple[float | None, ...], kind: str, is_open: bool
) -> None:
    found = judge(launches(*values), ("step", "20ms"))

    assert (found.kind, found.is_open) == (kind, is_open)


@pytest.mark.parametrize("better", ["exact", "info", "same", "floor", "steps"])
def test_what_is_not_noisy_is_beyond_at_once_in_any_launch(better: str) -> None:
    found = judge(launches(1.0, 3.0, 1.0, better=better), ("step", "<= 2"))

    assert (found.kind, found.is_open) == ("regressed", False)
    assert found.reason.startswith("3 s, bound: at most 2 s")


def test_a_bound_has_a_direction_and_a_unit_that_fits() -> None:
    assert judge(launches(9.0, better="higher", unit="GB/s"), ("step", "10 GB/s")).kind == "regressed"
    assert judge(launches(9.0, better="higher", unit="GB/s"), ("step", "<= 10 GB/s")).kind == "unchanged"
    assert judge(launches(9.0, better="higher", unit="GB/s"), ("step", 8)).kind == "unchanged"
    ambiguous = r"better='exact' does not say which side is worse: write '<= 5' or '>= 5'"
    with pytest.raises(ConfigurationError, match=ambiguous):
        judge(launches(9.0, better="exact"), ("step", 5))

    unfit = r"the bound of 'step' \(marker of test_x\): the unit 'GB/s' does not fit"
    with pytest.raises(ConfigurationError, match=unfit):
        judge(launches(0.01), ("step", "10 GB/s"))


def test_a_name_holds_for_all_points_and_a_key_for_one() -> None:
    one = Sample(name="latency", unit="s", better="lower", value=0.03, at=AT_4K)
    measured = [one, replace(one, value=0.01, at={"message_bytes": 8192})]
    made = [LaunchRecord(index=i, outcome="passed", wall_s=1.0, measurements=measured) for i in range(3)]
    given = [verdict("no-baseline", metric=m.key, at=m.at) for m in measured]

    def kinds(name: str) -> list[str]:
        return [j.kind for j in judge_bounds(given, made, [(name, "20ms", WHERE)])]

    assert kinds("latency") == ["regressed", "unchanged"]
    assert kinds("latency[message_bytes=8192]") == ["new", "unchanged"]


def test_rates_and_shares_of_a_peak_bound_the_time_of_a_sweep() -> None:
    made = launches(1e-3, 1e-3, 1e-3, name="latency", at={"message_bytes": 10**6}, facts={"busbw_factor": 1.5})
    assert judge(made, ("busbw", "1.4 GB/s")).kind == "unchanged"
    found = judge(made, ("busbw[message_bytes=1000000]", ">= 2 GB/s"))
    assert found.reason == "1 ms, bound: at most 750 us, that is busbw >= 2 GB/s (marker of test_x)"
    assert judge(made, ("algbw", 2)).bounds[0].value == pytest.approx(0.5e-3)
    with pytest.raises(ConfigurationError, match="a rate is above 0"):
        judge(made, ("algbw", 0))

    facts = {"busbw_factor": 1.5, LINK_PEAK: 3.0}  # 1.5 GB/s of 3
    made = launches(1e-3, 1e-3, 1e-3, name="latency", at={"message_bytes": 10**6}, facts=facts)
    assert judge(made, ("busbw_share", ">= 45 %")).kind == "unchanged"
    found = judge(made, ("busbw_share", ">= 0.8"))
    assert found.reason == "1 ms, bound: at most 625 us, that is busbw_share >= 0.8 (marker of test_x)"
    check_measured([("busbw_share", 0.5, WHERE)], made, None)


def test_of_a_training_a_bound_holds_for_all_seeds_and_for_a_goal_that_was_missed() -> None:
    one = Sample(name="final_accuracy", unit="", better="floor", value=0.98, at={"seed": 0})
    measured = [one, replace(one, value=0.91, at={"seed": 1})]
    made = [LaunchRecord(index=0, outcome="passed", wall_s=1.0, measurements=measured)]
    given = [verdict("no-baseline", metric="final_accuracy", better="floor")]
    [found] = judge_bounds(given, made, [("final_accuracy", ">= 0.95", WHERE)])
    assert found.reason == "0.91 of seed 1, bound: at least 0.95 (marker of test_x)"
    assert len(found.bounds) == 1

    made = launches(None, name="steps_to_accuracy", better="steps", unit="steps")
    found = judge(made, ("time_to_accuracy", "5 s"), code="beyond-threshold")
    check_measured([("time_to_accuracy", "5 s", WHERE)], made, None)
    assert found.kind == "regressed"
    assert found.reason == "not reached: no time_to_accuracy, bound: 5 s (marker of test_x)"


def test_a_bound_of_nothing_that_was_measured_is_an_error_but_of_a_size_that_was_left_out() -> None:
    made = launches(1e-3, name="latency", at=AT_4K, facts={"busbw_factor": 1.5})
    message = (
        r"the bound of 'latncy' \(marker of test_x\) names no metric that was judged; the metrics are "
        r"latency\[message_bytes=4096\], algbw\[message_bytes=4096\], busbw\[message_bytes=4096\]"
    )
    with pytest.raises(ConfigurationError, match=message):
        check_measured([("latncy", 1, WHERE)], made, None)
    check_measured([("latency", 1, WHERE), ("busbw", 1, WHERE)], made, None)

    large = (metric_key("busbw", {"message_bytes": 2**20}), 1, WHERE)
    check_measured([large], launches(1.0), 4096)
    with pytest.raises(ConfigurationError):
        check_measured([large], launches(1.0), 2**20)


def test_a_comparison_of_runs_has_the_bounds_of_the_newer() -> None:
    bounds = [Bound(side="most", value=0.02, where=WHERE)]
    beyond = verdict("bound", reason="30 ms, bound: ...", bounds=bounds)

    assert carry_over(verdict("better"), beyond).kind == "regressed"
    assert carry_over(verdict("better"), verdict("within-bound", bounds=bounds)).kind == "improved"
    assert carry_over(verdict("no-baseline"), verdict("within-bound", bounds=bounds)).kind == "unchanged"
    assert carry_over(verdict("no-baseline"), None).kind == "new"
    assert carry_over(verdict("beyond-threshold"), verdict("bound")).kind == "regressed"


@pytest.mark.parametrize(
    ("here", "there", "reason"),
    [
        (0.04, 0.02, "30 ms, bound: at most 20 ms (lib.py:3, the other revision's; the candidate's: at most 40 ms)"),
        (None, 0.02, "30 ms, bound: at most 20 ms (lib.py:3, the other revision's; the candidate's: none)"),
        (0.02, 0.04, "30 ms, bound: at most 20 ms (lib.py:3)"),
        (0.04, 0.04, ""),
    ],
    ids=["loosened", "left out", "tightened", "kept"],
)
def test_the_tighter_bound_of_both_sides_judges_and_the_loosened_one_is_named(
    here: float | None, there: float, reason: str
) -> None:
    def side(limit: float | None) -> list[LaunchRecord]:
        bounds = [Bound(side="most", value=limit, where="lib.py:3")] if limit is not None else []
        return [replace(one, measurements=[replace(one.measurements[0], bounds=bounds)]) for one in launches(0.03)]

    made = side(here)
    given = verdict("within-threshold", metric="step", unit=made[0].measurements[0].unit, reason="")
    [found] = judge_bounds([given], made, [], baseline=side(there))

    assert (found.code == "bound", found.reason) == (bool(reason), reason)
