"""Which cases get a trace, and what is told of those that get none. The launches are real in tests/end_to_end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.projects import TEST, Project, run
from support.results import result, verdict

from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.run import CaseResult
from pytest_distbench.run.control import wants_trace
from pytest_distbench.store.files import read_run_record

FAILED = [LaunchRecord(index=0, outcome="failed", wall_s=1.0)]


def wants(case: CaseResult, cases: Any = "regressed", *, judges: bool = True) -> bool:
    settings: Any = SimpleNamespace(trace=cases, judges=judges)
    return wants_trace(settings, case)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (result(verdict("beyond-threshold")), True),
        (result(verdict(), verdict("bound")), True),
        (result(verdict("beyond-threshold", better="higher", unit="samples/s")), True),
        (result(verdict("bound", better="info")), True),
        (result(verdict("within-threshold")), False),
        (result(verdict("noise")), False),
        (result(verdict("beyond-threshold", better="memory", unit="B")), False),
        (result(verdict("beyond-threshold", better="floor", unit="")), False),
        (result(verdict("beyond-threshold"), xfail_perf="known"), False),
        (result(verdict("beyond-threshold"), launches=FAILED), False),
    ],
)
def test_a_regression_of_a_clock_or_a_rate_gets_one_and_where_all_are_asked_for_all_that_passed(
    case: CaseResult, expected: bool
) -> None:
    assert wants(case) is expected
    assert wants(case, "regressed:ranks") is expected
    assert wants(case, "all") is wants(case, "all:ranks") is (case.launches != FAILED)
    assert not wants(case, "all", judges=False)


def test_a_launch_whose_ranks_leave_no_traces_is_told_and_the_verdict_stands(project: Project) -> None:
    """These ranks are made up, and write none."""
    made = project(TEST)
    told = run(made, "--distbench-trace=all", "--distbench-json=r.json")
    [case] = read_run_record(made.path / "r.json").results

    told.assert_outcomes(passed=1)
    told.stdout.fnmatch_lines(["? trace of test_step?ws2?: none: the launch of candidate with the profiler: *rank 0*"])
    assert case.trace is not None
    assert case.trace.path == ""
    assert len(case.launches) == 1
    assert not (made.path / ".distbench").exists()
