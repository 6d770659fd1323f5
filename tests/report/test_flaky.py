"""Tests that passed only when they were run again."""

from __future__ import annotations

from support.results import result, verdict

from pytest_distbench.report.flaky import flaky_tests


def test_a_test_is_told_once_with_its_attempts_and_what_ended_the_first() -> None:
    flaky = result(verdict(), flaky=["step +50 %", "step +60 %"])

    assert flaky_tests([flaky, flaky, result(verdict(), nodeid="a.py::test_b")]) == {
        flaky.nodeid: "flaky: passed at attempt 3, before: step +50 %"
    }
