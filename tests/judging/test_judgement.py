"""A verdict on one metric, and what all that is said about a case makes of its test."""

from __future__ import annotations

from typing import Any

import pytest
from support.results import STORED, result, verdict

from pytest_distbench.judging.outcome import Strictness, conclude
from pytest_distbench.judging.terms import certain_failure, closed, severity, worst
from pytest_distbench.records.kinds import Better
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Bound
from pytest_distbench.records.reasons import ReasonCode
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, Control, Finding, OtherSideRecord


@pytest.mark.parametrize(
    ("code", "better", "is_open", "words"),
    [
        ("beyond-threshold", "exact", False, "m regressed"),
        ("beyond-threshold", "curve", False, "m regressed"),
        ("bound", "exact", False, "m violates its bound"),
        ("communication", "exact", False, "m changed"),
        ("not-measured", "lower", False, "m is not measured"),
        ("beyond-threshold", "lower", False, ""),
        ("bound", "lower", True, ""),
        ("noise", "lower", True, ""),
        ("numerics", "curve", False, ""),
    ],
)
def test_what_does_not_scatter_is_certain(code: ReasonCode, better: Better, is_open: bool, words: str) -> None:
    assert certain_failure([replace(verdict(code, metric="m", better=better), is_open=is_open)]) == words


def test_what_was_open_says_that_it_was_not_judged_and_why() -> None:
    found = closed(replace(verdict("noise", reason="more launches are needed"), is_open=True), "sum regressed")

    assert not found.is_open
    assert found.reason == "not evaluated: the case already failed (sum regressed)"


def test_an_unconfirmed_fingerprint_stays_changed_if_another_metric_fails() -> None:
    """It may be why that is red."""
    seen = verdict("communication", metric="fingerprint", better="exact")

    assert closed(replace(seen, is_open=True), "sum regressed") == seen


def regressed(metric: str, ratio: float | None, better: str = "lower") -> Finding:
    return Finding(metric=metric, code="beyond-threshold", unit="", better=better, current=ratio, baseline=1.0)


def test_the_most_severe_verdict_is_named_first() -> None:
    assert severity(regressed("time", 2.0)) == pytest.approx(severity(regressed("rate", 0.5, "higher")))

    assert worst([regressed("a", 100.0), regressed("b", None), regressed("c", 0.001)]).metric == "b"

    assert worst([regressed("a", None), regressed("loss", 1.01, "curve")]).metric == "loss"

    beyond = Finding(metric="b", code="bound", unit="", better="lower", current=1.0, baseline=1.0)
    assert worst([regressed("loss", None, "curve"), beyond, regressed("a", None)]).metric == "b"

    slow, fine = verdict("beyond-threshold", metric="slow"), verdict("within-threshold", metric="fine")
    found = conclude(result(fine, slow), Strictness())
    assert (found.outcome, found.decision, found.headline[:4]) == ("failed", "failed", "slow")


BOUND = Bound(side="most", value=1.0, where="x")
NOTHING = OtherSideRecord(kind="nothing")
OF_TIMINGS = {"advisory": "--distbench-advisory=timings", "is_advisory_of_timings": True}


def ended(outcome: Any) -> dict[str, Any]:
    return {"launches": [LaunchRecord(index=0, outcome=outcome, wall_s=1.0)]}


def concluded(made: CaseResult, **policy: Any) -> tuple[str, str]:
    found = conclude(made, Strictness(**policy))
    return found.outcome, found.decision


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (result(verdict("within-threshold")), ("passed", "")),
        (result(verdict("better"), verdict("noise")), ("passed", "")),
        (result(verdict("within-threshold"), verdict("beyond-threshold")), ("failed", "failed")),
        (result(verdict("beyond-threshold"), xfail_perf="bug 12"), ("xfailed", "failed")),
        (result(verdict("beyond-threshold"), **ended("failed")), ("failed", "launch")),
        (result(**ended("skipped")), ("skipped", "launch")),
        (result(verdict("beyond-threshold"), verdict("bound")), ("failed", "bound")),
        (result(verdict("bound"), update="refused"), ("failed", "bound")),
        (result(verdict("bound"), xfail_perf="bug 12"), ("xfailed", "bound")),
        (result(verdict("within-threshold", better="info", bounds=[BOUND])), ("passed", "")),
        (result(), ("failed", "nothing_judged")),
        (result(verdict("within-threshold", better="info")), ("failed", "nothing_judged")),
        (result(reference=NOTHING), ("passed", "")),
        (result(verdict("other-workload"), reference=NOTHING), ("passed", "")),
        (result(verdict("beyond-threshold"), update="changed"), ("passed", "")),
        (result(verdict("beyond-threshold"), update="kept"), ("passed", "")),
        (result(verdict("within-threshold"), update="refused"), ("failed", "refused")),
        (result(verdict("bound"), advisory="flaky", update="refused"), ("advisory", "bound")),
        (result(verdict("within-threshold"), advisory="flaky", update="refused"), ("failed", "refused")),
        (result(verdict("beyond-threshold"), advisory="flaky", xfail_perf="bug 12"), ("xfailed", "failed")),
        (result(verdict("beyond-threshold"), advisory="flaky", **ended("failed")), ("failed", "launch")),
        (result(advisory="flaky"), ("failed", "nothing_judged")),
        (result(verdict("beyond-threshold"), **OF_TIMINGS), ("advisory", "failed")),
        (result(verdict("beyond-threshold", better="memory"), **OF_TIMINGS), ("advisory", "failed")),
        (result(verdict("bound"), **OF_TIMINGS), ("advisory", "bound")),
        (result(verdict("beyond-threshold", better="exact"), **OF_TIMINGS), ("failed", "failed")),
        (result(verdict("beyond-threshold", better="curve"), **OF_TIMINGS), ("failed", "failed")),
        (result(verdict("beyond-threshold"), verdict("bound", better="exact"), **OF_TIMINGS), ("failed", "bound")),
        (result(verdict("not-measured"), **OF_TIMINGS), ("failed", "failed")),
    ],
)
def test_the_first_rule_that_holds_decides(made: CaseResult, expected: tuple[str, str]) -> None:
    assert concluded(made) == expected


def test_the_policy_decides_what_fails_and_what_counts_as_judged() -> None:
    assert conclude(result(**ended("skipped")), Strictness(), stood_down="xfailed").outcome == "xfailed"

    made = result(verdict("better"), reference=STORED)
    assert concluded(made, options=frozenset({"distbench-fail-on-improvement"})) == ("failed", "unaccepted")
    assert concluded(made, options=frozenset({"distbench-strict"})) == ("passed", "")

    assert concluded(result(verdict("within-bound"), verdict("no-baseline")), no_baseline="fail") == ("passed", "")

    for stored in (verdict("within-threshold"), verdict("noise")):
        assert concluded(result(verdict("no-baseline"), stored), no_baseline="fail") == ("passed", "")
    assert concluded(result(verdict("no-baseline"), verdict("noise", baseline=None)), no_baseline="fail")[1] == "new"


@pytest.mark.parametrize(
    ("no_baseline", "expected"), [("warn", ("passed", "")), ("skip", ("skipped", "new")), ("fail", ("failed", "new"))]
)
def test_without_any_baseline_the_policy_decides(no_baseline: str, expected: tuple[str, str]) -> None:
    assert concluded(result(verdict("no-baseline")), no_baseline=no_baseline) == expected


@pytest.mark.parametrize(
    ("control", "strict"),
    [
        (Control(verdicts=[verdict("beyond-threshold")]), ("passed", "")),
        (Control(verdicts=[verdict("within-threshold")]), ("failed", "not_found")),
        (Control(why_not="it takes its own times"), ("passed", "")),
    ],
)
def test_an_undetected_slowdown_fails_under_strict_alone(control: Control, strict: tuple[str, str]) -> None:
    made = result(reference=NOTHING, control=control)

    assert concluded(made, options=frozenset({"distbench-strict"})) == strict
    assert concluded(made) == ("passed", "")
