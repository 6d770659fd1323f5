"""Which cases get a trace or places, and what is said of those that get none. tests/end_to_end has real launches."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from support.projects import TEST, Project, run
from support.results import result, verdict

from pytest_distbench.errors import ReadingError
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.plan import BodyReference, Command, LaunchRequest, Ranks, Work
from pytest_distbench.records.run import CaseResult, Finding
from pytest_distbench.run.control import explain_places, wants_trace
from pytest_distbench.run.sources import Made
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
def test_a_regressed_timing_or_rate_gets_a_trace_or_all_that_passed_if_asked_for(
    case: CaseResult, expected: bool
) -> None:
    assert wants(case) is expected
    assert wants(case, "regressed:ranks") is expected
    assert wants(case, "all") is wants(case, "all:ranks") is (case.launches != FAILED)
    assert not wants(case, "all", judges=False)


def test_a_launch_without_traces_is_reported_and_the_verdict_stands(project: Project) -> None:
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


SLOWER = verdict("beyond-threshold", statistic="A/B")
BODY = Ranks(body=BodyReference(module="m", file="m.py", function="f"))


def places(
    case: CaseResult, work: Work = BODY, *, left_s: float | None = None, stored: Mapping[str, object] | None = None
) -> CaseResult:
    def fail(*_: object, memory: bool) -> None:
        assert memory is any(v.name == "peak_memory" for v in case.verdicts)
        raise ReadingError("it hung")

    launches = [LaunchRecord(index=0, outcome="passed", wall_s=1.0)]
    launched = LaunchRequest(work=work, world_size=2, backend="gloo", device="cpu", timeout_s=60.0)
    launching = SimpleNamespace(
        compared_with=None if stored else "HEAD", places=fail, hosting=lambda work: SimpleNamespace(hosts="one")
    )
    session: Any = SimpleNamespace(launching=launching, alone=lambda *_, **__: contextlib.nullcontext(), **stored or {})
    source = Made(launches)
    source.others += [] if stored else launches
    request: Any = SimpleNamespace(launched=launched, case=case.case)
    budget = SimpleNamespace(seconds=90.0, left_s=left_s)
    rerun: Any = None if left_s is None else SimpleNamespace(variants={case.case.key: "c1"}, budget=budget)
    return explain_places(session, request, source, case, rerun)


@pytest.mark.parametrize(
    "case",
    [
        result(verdict("beyond-threshold")),
        result(verdict("within-threshold", statistic="A/B")),
        result(verdict("noise", statistic="A/B")),
        result(verdict("beyond-threshold", statistic="A/B", better="memory", unit="B")),
        result(SLOWER, xfail_perf="known"),
    ],
)
def test_places_are_those_of_a_timing_that_ab_found_regressed(case: CaseResult) -> None:
    assert places(case) is case


LARGER = verdict("beyond-threshold", metric="peak_memory", better="memory", unit="B")


@pytest.mark.parametrize(("verdicts", "has"), [([SLOWER], (1, 0)), ([LARGER], (0, 1)), ([SLOWER, LARGER], (1, 1))])
def test_a_result_without_places_says_why(verdicts: list[Finding], has: tuple[int, int]) -> None:
    def why(*given: Any, **named: Any) -> str:
        found = places(result(*verdicts), *given, **named)
        known = [places for places in (found.places, found.memory_places) if places is not None]
        assert has == (found.places is not None, found.memory_places is not None)
        return known[0].why_not

    assert why() == "a launch that records places failed: it hung"
    assert why(left_s=5.0) == why()
    assert why(left_s=2.0) == "it takes about 3 s more: --distbench-confirm=auto:93"
    assert why(Command(words=["true"])) == "a command starts its processes itself"


@pytest.mark.parametrize(
    ("seconds", "is_itself", "why_not"),
    [
        (60.0, False, "a launch that records places failed: it hung"),
        (1.0, False, "it takes about 3 s more: --distbench-confirm=auto:4"),
        (60.0, True, None),
    ],
)
def test_memory_against_a_stored_baseline_has_places_of_other_code_in_the_time_of_a_confirmation(
    seconds: float, is_itself: bool, why_not: str | None
) -> None:
    recorder = SimpleNamespace(is_itself=is_itself)
    stored = {
        "confirmer": SimpleNamespace(recorder=lambda *_: (recorder, None)),
        "settings": SimpleNamespace(is_paired=False, confirm_budget_s=seconds),
        "store": SimpleNamespace(path=lambda *_: None),
    }
    found = places(result(LARGER), stored=stored).memory_places

    assert (found and found.why_not) == why_not
