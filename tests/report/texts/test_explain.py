"""Why a case ended its test: one line, and the whole text."""

from __future__ import annotations

from typing import Any

import pytest
from support.results import result, verdict

from pytest_distbench.judging.policy import Strictness, conclude
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.texts.explain import explanation, headline


def ended(outcome: Any, reason: str) -> dict[str, Any]:
    return {"launches": [LaunchRecord(index=0, outcome=outcome, wall_s=1.0, reason=reason)]}


STRICT = Strictness(missing="fail", also_failing=frozenset({"inconclusive"}))


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (result(verdict()), ""),
        (result(**ended("failed", "hung")), "launch 1: hung"),
        (result(**ended("skipped", "no data")), "no data"),
        (result(**ended("skipped", "")), "all ranks skipped"),
        (result(verdict("regressed")), "step +50.0 % (limit +10%)"),
        (result(verdict("regressed"), xfail_perf="bug 12"), "bug 12"),
    ],
)
def test_one_line_says_what_decided(made: CaseResult, told: str) -> None:
    assert headline(made, conclude(made, STRICT)) == told


@pytest.mark.parametrize(
    "made",
    [
        result(verdict("regressed")),
        result(verdict("inconclusive", reason="busy")),
        result(verdict("missing")),
        result(verdict(), update="refused"),
        result(),
        result(**ended("failed", "hung")),
    ],
)
def test_the_whole_text_begins_with_that_line(made: CaseResult) -> None:
    conclusion = conclude(made, STRICT)
    text = explanation(made, conclusion, command="pytest x", platforms=["cpu-y"])

    assert conclusion.outcome == "failed"
    assert text.startswith(headline(made, conclusion))
    assert headline(made, conclusion) != ""


def test_an_update_accepts_a_changed_fingerprint_which_has_no_value() -> None:
    other = result(verdict("changed", metric="fingerprint", better="exact", current=None, baseline=None))

    assert "--distbench-update" in explanation(other, conclude(other, STRICT), command="pytest x", platforms=[])


def test_no_update_is_advised_that_would_be_refused() -> None:
    lacking = result(verdict("regressed", current=None, reason="no value in 1 of 1 launches"))
    text = explanation(lacking, conclude(lacking, STRICT), command="pytest x", platforms=[])

    assert "no update accepts a metric without a value" in text
    assert "--distbench-update" not in text
