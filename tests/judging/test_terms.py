"""How the metrics of a case are judged, and whether two numbers can be compared at all."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from support.cases import ON_TWO
from support.metrics import baseline_of, judge
from support.stores import entry, result

from pytest_distbench.judging.entry import make_baseline
from pytest_distbench.judging.terms import Terms, difference, software_changes, staleness, version_changes
from pytest_distbench.judging.thresholds import Circumstances
from pytest_distbench.records.case import Case
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Bound, Sample, Scalar
from pytest_distbench.records.record import replace

NAMED = {"step": 0.2}
STEP = Sample(name="step", unit="s", better="lower", value=1.0)


@pytest.mark.parametrize(
    ("by_hand", "of_test", "accepted", "named"),
    [
        ((0.5, 0.4), NAMED, 0.5, 0.5),
        ((None, 0.4), NAMED, 0.4, 0.4),
        ((None, None), NAMED, 0.2, 0.2),
        ((None, None), {"other": 0.2}, 0.1, None),
        ((None, None), 0.3, 0.3, None),
        ((None, None), None, 0.1, None),
        ((0.0, 0.4), 0.3, 0.0, 0.0),
        ((None, None), 0.0, 0.0, None),
    ],
)
def test_the_tolerance_closest_to_the_number_counts(
    by_hand: tuple[float | None, float | None], of_test: Any, accepted: float, named: float | None
) -> None:
    terms = Terms(tolerance=of_test, default_tolerance=0.1, max_launches=1, cores=2)

    assert terms.tolerance_of(STEP, by_hand) == accepted
    assert terms.own_tolerance_of("step", by_hand) == named


WALL = replace(STEP, name="wall_time")
LOSS = replace(STEP, name="loss", unit="", better="exact")
BOUND = Bound(side="at_most", value=1.0, where="rank.record")


@pytest.mark.parametrize(
    ("metrics", "terms", "has_baseline", "judged"),
    [
        ([LOSS], {}, True, False),
        ([LOSS, STEP], {}, True, True),
        ([LOSS, STEP], {}, False, True),
        ([LOSS, STEP], {"metrics": ("loss",)}, True, False),
        ([LOSS, replace(STEP, better="info")], {}, True, False),
        ([LOSS, WALL], {}, True, False),
        ([LOSS, WALL], {"tolerance": {"wall_time": 0.1}}, True, True),
        ([LOSS, WALL], {"bounds": [("wall_time", 9.0, "the marker")]}, True, True),
        ([replace(LOSS, bounds=[BOUND]), STEP], {}, True, True),
        ([replace(LOSS, bounds=[BOUND]), STEP], {}, False, False),  # it is judged by its bounds alone
        ([LOSS, replace(STEP, bounds=[BOUND])], {}, False, True),
        ([LOSS, STEP], {"bounds": [("loss", 9.0, "the marker")]}, False, False),
    ],
)
def test_a_timing_is_judged_that_somebody_asked_for(
    metrics: list[Sample], terms: dict[str, Any], has_baseline: bool, judged: bool
) -> None:
    given = Terms(**({"default_tolerance": 0.1, "max_launches": 1, "cores": 2} | terms))

    assert given.judge_timings(metrics, has_baseline=has_baseline) == judged


def test_a_kind_with_a_tolerance_of_its_own_gives_way_to_nothing_less_than_its_name() -> None:
    """A tolerance for a test's timings does not apply to its memory."""
    memory = replace(STEP, name="peak_memory", unit="B", better="memory")
    clocks = Terms(tolerance=0.5, default_tolerance=0.1, max_launches=1, cores=2)
    named = dataclasses.replace(clocks, tolerance={"peak_memory": 0.05})

    assert clocks.tolerance_of(memory, (None, None)) == 0.2
    assert named.tolerance_of(memory, (None, None)) == 0.05
    assert named.tolerance_of(memory, (None, 0.4)) == 0.4


def test_metrics_that_are_not_listed_and_parameters_that_say_nothing_change_nothing() -> None:
    terms = Terms(metrics=("step",), default_tolerance=0.1, max_launches=1, cores=2)
    assert (terms.wants("step"), terms.wants("loss")) == (True, False)

    assert difference(stored({})[0], measured({}, better="exact")) == "the kind was 'lower', now it is 'exact'"

    assert compare({"a": 1}, {"a": 1}) == ("", "")
    assert staleness(replace(entry(1.0), workload=""), case(a=1)) is None

    then, now = ["--run=2026-11-21", "--n=3"], ["--run=2026-11-22", "--n=4"]
    assert compare({"args": then}, {"args": now})[0] == "other-workload"


@pytest.mark.parametrize(
    ("tolerance", "metrics", "measured", "misspelt"),
    [
        (None, None, {"step"}, {}),
        (0.1, None, {"step"}, {}),
        ({"step": 0.1}, ("step",), {"step", "steps"}, {}),
        ({"stepp": 0.1}, None, {"step", "loss"}, {"stepp": "step"}),
        ({"step": 0.1}, ("latncy",), {"step", "latency"}, {"latncy": "latency"}),
        ({"step": 0.1, "steps": 0.2}, None, {"step"}, {}),  # of two tests of a class
        ({"other": 0.1}, None, {"step", "latency"}, {}),  # of another test
        ({"time_to_accuracy": 0.1}, None, {"steps_to_accuracy"}, {}),  # the goal was missed
    ],
)
def test_a_name_that_resembles_a_metrics_name_is_reported(
    tolerance: Any, metrics: tuple[str, ...] | None, measured: set[str], misspelt: dict[str, str]
) -> None:
    terms = Terms(tolerance=tolerance, metrics=metrics, default_tolerance=0.1, max_launches=1, cores=2)

    assert terms.misspelt(measured) == misspelt


LOOP: dict[str, Scalar] = {"mode": "loop", "in_place": True}
PER_ITERATION: dict[str, Scalar] = {"mode": "per-iteration", "in_place": True}
REASON = "mode was per-iteration, now loop"


def measured(identity: Mapping[str, Scalar], *, better: str = "lower", unit: str = "s") -> Sample:
    return Sample(name="m", unit=unit, better=better, value=1.0, identity=dict(identity))


def stored(identity: Mapping[str, Scalar], *, better: str = "lower") -> list[Sample]:
    return baseline_of([1.0, 1.0], better, identity=identity)


@pytest.mark.parametrize(
    ("then", "now", "why_not"),
    [
        (PER_ITERATION, PER_ITERATION, ""),
        (PER_ITERATION, LOOP, REASON),
        ({}, LOOP, ""),
        (PER_ITERATION, {}, ""),
        ({"cache": "hot"}, {"mode": "loop"}, ""),
        ({"every": 5}, {"every": 5.0}, ""),
        ({"a": 1, "b": 1}, {"b": 2, "a": 2}, "a was 1, now 2"),
    ],
)
def test_what_both_note_must_be_equal_and_what_one_notes_is_not_known_to_differ(
    then: Mapping[str, Scalar], now: Mapping[str, Scalar], why_not: str
) -> None:
    assert difference(stored(then)[0], measured(now)) == why_not


def test_a_baseline_stores_the_identity_alone_and_a_verdict_has_facts_too() -> None:
    case = Case(test="t.py::t", id="ws2", conditions=ON_TWO, device="cpu")
    measurement = Sample(name="m", unit="s", better="lower", value=1.0, identity=LOOP, facts={"busbw_factor": 1})
    launch = LaunchRecord(index=0, outcome="passed", wall_s=1.0, measurements=[measurement])

    verdict = judge([measurement], (), Circumstances(tolerance=0.1, comparisons=1, max_launches=1))

    assert make_baseline(case, [launch], {}).metrics["m"][0].identity == LOOP
    assert verdict.facts == {**LOOP, "busbw_factor": 1}


@pytest.mark.parametrize(
    ("stored", "current", "told"),
    [
        ({"torch": "2.12"}, {"torch": "2.12"}, []),
        ({"torch": "2.12", "numpy": "2"}, {"torch": "2.13", "numpy": "3"}, ["numpy 2 -> 3", "torch 2.12 -> 2.13"]),
        ({"mkl": "1"}, {}, ["mkl 1 -> -"]),
        ({}, {"mkl": "1"}, ["mkl - -> 1"]),
        ({"torch": "2.13"}, {"torch": "2.13", "autocast": "off", "deterministic": "on"}, []),
    ],
)
def test_changed_software_is_listed_by_name(stored: dict[str, str], current: dict[str, str], told: list[str]) -> None:
    assert software_changes(stored, current) == told


def case(**params: Any) -> Case:
    return replace(result(1.0).case, params=params)


def compare(then: dict[str, Any], now: dict[str, Any]) -> tuple[str, str]:
    return staleness(replace(entry(1.0), workload=case(**then).workload, params=then), case(**now)) or ("", "")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"backend": "nccl"}, "backend was nccl and is gloo"),
        ({"world_size": 4}, "world_size was 4 and is 2"),
        ({"around": {"cooling": "low"}}, "around was {'cooling': 'low'} and is {}"),
        ({"kind": "job"}, ""),  # older files take a pool for a job
    ],
)
def test_numbers_of_other_conditions_are_never_compared(changes: dict[str, Any], text: str) -> None:
    """Though a file may have the case's name: somebody has edited or copied it."""
    stored = replace(entry(1.0), workload="", conditions=replace(case().conditions, **changes))
    found = staleness(stored, case())

    if not text:
        assert found is None
        return
    assert found is not None
    assert (found[0], text in found[1]) == ("other-workload", True)


def test_a_change_is_named_by_its_place() -> None:
    code, reason = compare({"args": ["--n", "3"], "env": {"A": "1"}, "lr": 0.1}, {"args": ["--n", "4"], "env": {}})
    assert code == "other-workload"
    assert reason == (
        "the case's parameters changed since the baseline; --distbench-update records it again; args[1] was '3' and "
        "is '4'; env was not set and is {}; env.A was '1' and is not set; and 1 more"
    )

    text = "the case's parameters changed since the baseline; --distbench-update records it again; "
    assert compare({}, {"extra": 3})[1] == text + "extra was not set and is 3"
    assert compare({"extra": 3}, {})[1] == text + "extra was 3 and is not set"

    stored = replace(entry(1.0), workload="other", params={})
    found = staleness(stored, case())
    assert found is not None
    assert found[1].endswith("--distbench-update records it again")

    stored = {"torch": "2.13", "matmul_precision": "ieee", "autocast": "off"}
    current = {"torch": "2.13", "matmul_precision": "tf32", "autocast": "off"}
    assert software_changes(stored, current) == ["matmul_precision ieee -> tf32"]
    assert version_changes(stored, current) == []
    assert version_changes(stored, {**current, "torch": "2.14"}) == ["torch 2.13 -> 2.14"]


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("--name=run-20261121-091200", "--name=run-20261122-083105"),
        ("--run=2026-11-21T09:12", "--run=2026-11-22T08:31"),
        ("out_1763712000", "out_1763798400"),
        ("--id=0f9a3c1e-6b1d-4f0e-9a55-1c2d3e4f5a6b", "--id=7e1f0a2b-1c2d-4e5f-8a9b-0c1d2e3f4a5b"),
        ("--commit=3f2a91c0d4", "--commit=41ffc0e12b"),
        ("--dir=x/tmpab12cd_9", "--dir=x/tmpzz81qw0e"),
    ],
)
def test_a_parameter_that_names_a_run_is_reported_as_such(then: str, now: str) -> None:
    code, reason = compare({"args": [then, "--n=3"]}, {"args": [now, "--n=3"]})

    assert code == "run-specific-workload"
    assert reason.startswith(f"args[0] was '{then}' and is '{now}': that changes with every run")


@pytest.mark.parametrize("name", ["BUILD_NUMBER", "GITHUB_RUN_ID", "SLURM_JOB_ID", "PID", "CI_PIPELINE_ID"])
def test_a_number_that_its_name_gives_to_a_run_is_volatile(name: str) -> None:
    assert compare({"env": {name: "411"}}, {"env": {name: "412"}})[0] == "run-specific-workload"
    assert compare({"env": {name: "411"}}, {"env": {}})[0] == "other-workload"


@pytest.mark.parametrize(
    ("then", "now"),
    [("50", "60"), ("1763712000", "1763798400"), ("--n=50", "--n=60"), ("small", "large"), ("a", 3), ("v2", "v3")],
)
def test_a_parameter_that_changed_is_a_changed_workload(then: object, now: object) -> None:
    assert compare({"args": [then]}, {"args": [now]})[0] == "other-workload"
