"""What differs between two commits, from the results of runs at both."""

from __future__ import annotations

import math
from typing import Any

import pytest
from support.results import PAIRED, result, verdict

from pytest_distbench.judging.moved import Answer, answer, clarity, clock_moves, exact_moves, failure, log_ratios, tell
from pytest_distbench.records.bisection import LAUNCH_FAILS
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.rank import ErrorReport, RankFate
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult


def launch(index: int = 0, *, step: float = 0.02, count: float | None = 7, **changes: Any) -> LaunchRecord:
    measured = [Measurement(name="step", unit="s", better="lower", value=step, ranks=2)]
    if count is not None:
        measured.append(Measurement(name="count", unit="", better="exact", value=count, ranks=2))
    made = LaunchRecord(index=index, outcome="passed", wall_s=1.0, measurements=measured, software={"torch": "2.14.0"})
    return replace(made, **changes)


def failed(kind: str) -> LaunchRecord:
    error = ErrorReport(kind=kind, message="m", traceback="", raised_at=1.0)
    victim = RankFate(rank=0, outcome="failed", phase="body", how="was ended", is_victim=True)
    fate = RankFate(rank=1, outcome="failed", phase="body", how=f"raised {kind}", error=error)
    return launch(outcome="failed", fates=[victim, fate], reason=f"rank 1 raised {kind}")


def at(*launches: LaunchRecord, **changes: Any) -> CaseResult:
    return result(launches=list(launches), **changes)


GOOD = at(launch(0), launch(1))
BAD = at(launch(0, count=8), launch(1, count=8))


def test_a_failure_is_that_of_the_rank_that_failed_first() -> None:
    assert failure([launch(), failed("ValueError")]) == "ValueError"
    assert failure([launch()]) == ""
    assert failure([launch(outcome="failed")]) == "no rank says why"


def test_what_is_exact_differs_and_what_is_not_is_left_to_turns() -> None:
    slower = at(launch(0, count=8, step=9.0), launch(1, count=8, step=9.0))

    assert [(v.metric, v.kind, tell(v)) for v in exact_moves(GOOD, slower)] == [("count", "regressed", "exact: 7 -> 8")]
    assert exact_moves(GOOD, GOOD) == []


def test_what_differs_between_launches_of_one_commit_is_not_exact() -> None:
    assert exact_moves(at(launch(0), launch(1, count=9)), BAD) == []


def test_what_the_test_does_not_want_judged_is_not_followed() -> None:
    unjudged = replace(BAD, verdicts=[verdict(metric="count", better="info")])

    assert exact_moves(GOOD, unjudged) == []


def test_a_metric_that_vanishes_has_moved() -> None:
    assert [v.kind for v in exact_moves(GOOD, at(launch(0, count=None), launch(1, count=None)))] == ["lost"]


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        (launch(), Answer("", has_moved=False)),
        (launch(count=8), Answer("", has_moved=True)),
        (launch(count=9), Answer("not as BAD either, so it moved more than once; here: exact: 7 -> 9", has_moved=True)),
        (failed("ValueError"), Answer("the launch fails: rank 1 raised ValueError", has_moved=None)),
        (launch(software={"torch": "3"}, count=8), Answer("count cannot be compared: 7 -> 8, torch", has_moved=None)),
    ],
)
def test_one_launch_says_whether_an_exact_metric_has_moved(here: LaunchRecord, expected: Answer) -> None:
    found = answer("count", GOOD, BAD, at(here))

    assert found.has_moved == expected.has_moved
    assert found.told.startswith(expected.told.split(" 7")[0])


def test_a_launch_that_fails_as_at_bad_has_moved_and_one_that_fails_otherwise_says_nothing() -> None:
    bad = at(failed("ValueError"))

    assert answer(LAUNCH_FAILS, GOOD, bad, at(failed("ValueError"))).has_moved is True
    assert answer(LAUNCH_FAILS, GOOD, bad, at(launch())).has_moved is False
    other = answer(LAUNCH_FAILS, GOOD, bad, at(failed("ImportError")))
    assert other == Answer("fails in another way than at BAD: rank 1 raised ImportError", has_moved=None)


def test_pairs_are_those_that_measured_the_metric_on_both_sides() -> None:
    there = [launch(0, step=0.02), launch(1, step=0.02), launch(2, step=0.02)]
    here = [launch(0, step=0.03), launch(1, step=0.02), launch(2, measurements=[])]
    paired = at(*here, reference=replace(PAIRED, launches=there))

    assert log_ratios(paired, "step") == pytest.approx([math.log(1.5), 0.0])
    assert log_ratios(paired, "nothing") == []


def test_clocks_that_moved_and_how_clearly() -> None:
    there, here = [launch(0), launch(1)], [launch(0, step=0.03), launch(1, step=0.03)]
    slower, same = verdict("regressed", limit=0.1), verdict("unchanged", metric="other")
    changed = verdict("changed", metric="fingerprint", better="exact")
    paired = at(*here, reference=replace(PAIRED, launches=there), verdicts=[slower, same, changed])

    assert clock_moves(paired) == [slower]
    assert clarity(slower) == pytest.approx(math.log(1.5) / 0.1)
