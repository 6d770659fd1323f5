"""From what is said about a case to what that makes of its test."""

from __future__ import annotations

from typing import Any

import pytest
from support.results import STORED, result, verdict

from pytest_distbench.judging.policy import Conclusion, Strictness, conclude
from pytest_distbench.records.bound import Bound
from pytest_distbench.records.control import Control
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.run import CaseResult, ReferenceRecord

BOUND = Bound(side="most", value=1.0, where="x")
NOTHING = ReferenceRecord(kind="nothing")


def ended(outcome: Any) -> dict[str, Any]:
    return {"launches": [LaunchRecord(index=0, outcome=outcome, wall_s=1.0)]}


def told(made: CaseResult, **policy: Any) -> tuple[str, str]:
    found = conclude(made, Strictness(**policy))
    return found.outcome, found.reason


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (result(verdict("unchanged")), ("passed", "")),
        (result(verdict("improved"), verdict("inconclusive")), ("passed", "")),
        (result(verdict("unchanged"), verdict("regressed")), ("failed", "regressed")),
        (result(verdict("regressed"), xfail_perf="bug 12"), ("xfailed", "regressed")),
        (result(verdict("regressed"), **ended("failed")), ("failed", "launch")),
        (result(**ended("skipped")), ("skipped", "launch")),
        (result(verdict("regressed"), verdict("beyond")), ("failed", "beyond")),
        (result(verdict("beyond"), update="refused"), ("failed", "beyond")),
        (result(verdict("beyond"), xfail_perf="bug 12"), ("xfailed", "beyond")),
        (result(verdict("unchanged", better="info", bounds=[BOUND])), ("passed", "")),
        (result(), ("failed", "nothing_judged")),
        (result(verdict("unchanged", better="info")), ("failed", "nothing_judged")),
        (result(reference=NOTHING), ("passed", "")),
        (result(verdict("incomparable"), reference=NOTHING), ("passed", "")),
        (result(verdict("regressed"), update="changed"), ("passed", "")),
        (result(verdict("regressed"), update="kept"), ("passed", "")),
        (result(verdict("unchanged"), update="refused"), ("failed", "refused")),
    ],
)
def test_the_first_rule_that_holds_decides(made: CaseResult, expected: tuple[str, str]) -> None:
    assert told(made) == expected


def test_the_verdicts_that_decided_are_named() -> None:
    slow, fine = verdict("regressed", metric="slow"), verdict("unchanged", metric="fine")

    assert conclude(result(fine, slow), Strictness()) == Conclusion(
        outcome="failed", reason="regressed", verdicts=(slow,)
    )


def test_ranks_that_all_stood_down_get_what_they_asked_for() -> None:
    assert conclude(result(**ended("skipped")), Strictness(), stood_down="xfailed").outcome == "xfailed"


def test_a_verdict_that_the_policy_does_not_accept_fails() -> None:
    made = result(verdict("improved"), reference=STORED)

    assert told(made, also_failing=frozenset({"improved"})) == ("failed", "unaccepted")
    assert told(made, also_failing=frozenset({"inconclusive"})) == ("passed", "")


@pytest.mark.parametrize(
    ("missing", "expected"),
    [("warn", ("passed", "")), ("skip", ("skipped", "missing")), ("fail", ("failed", "missing"))],
)
def test_without_any_baseline_the_policy_decides(missing: str, expected: tuple[str, str]) -> None:
    assert told(result(verdict("missing")), missing=missing) == expected


@pytest.mark.parametrize(
    ("control", "strict"),
    [
        (Control(verdicts=[verdict("regressed")]), ("passed", "")),
        (Control(verdicts=[verdict("unchanged")]), ("failed", "not_found")),
        (Control(why_not="its clocks are its own"), ("passed", "")),
    ],
)
def test_a_planted_slowdown_that_was_not_found_fails_under_strict_alone(
    control: Control, strict: tuple[str, str]
) -> None:
    made = result(reference=NOTHING, control=control)

    assert told(made, also_failing=frozenset({"unseen"})) == strict
    assert told(made) == ("passed", "")


def test_what_keeps_to_a_bound_was_judged() -> None:
    assert told(result(verdict("within"), verdict("missing")), missing="fail") == ("passed", "")


def test_one_metric_without_a_baseline_is_no_missing_baseline() -> None:
    assert told(result(verdict("missing"), verdict("unchanged")), missing="fail") == ("passed", "")
