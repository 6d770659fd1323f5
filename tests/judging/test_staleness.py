"""Whether an entry is of the workload that was measured, and what became another one."""

from __future__ import annotations

from typing import Any

import pytest
from support.stores import entry, result

from pytest_distbench.judging.staleness import staleness
from pytest_distbench.records.case import Case
from pytest_distbench.records.record import replace


def case(**params: Any) -> Case:
    return replace(result(1.0).case, params=params)


def compare(then: dict[str, Any], now: dict[str, Any]) -> tuple[str, str]:
    stored = replace(entry(1.0), workload=case(**then).workload, params=then)
    found = staleness(stored, case(**now))
    return (found.kind, found.reason) if found is not None else ("", "")


def test_the_same_workload_and_one_that_says_nothing_are_not_stale() -> None:
    assert compare({"a": 1}, {"a": 1}) == ("", "")
    assert staleness(replace(entry(1.0), workload=""), case(a=1)) is None


def test_what_differs_is_named_by_its_place() -> None:
    kind, reason = compare({"args": ["--n", "3"], "env": {"A": "1"}, "lr": 0.1}, {"args": ["--n", "4"], "env": {}})

    assert kind == "incomparable"
    assert reason == (
        "the workload's definition changed since the baseline; --distbench-update records it anew; args[1] was '3' and "
        "is '4'; env was not there and is {}; env.A was '1' and is not there; and 1 more"
    )


def test_where_there_was_no_parameter_only_the_new_one_is_named() -> None:
    told = "the workload's definition changed since the baseline; --distbench-update records it anew; "

    assert compare({}, {"extra": 3})[1] == told + "extra was not there and is 3"
    assert compare({"extra": 3}, {})[1] == told + "extra was 3 and is not there"


def test_another_number_of_ranks_has_no_place() -> None:
    stored = replace(entry(1.0), workload="other", params={})

    found = staleness(stored, case())
    assert found is not None
    assert found.reason.endswith("--distbench-update records it anew")


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
def test_what_names_a_run_is_told_as_what_it_is(then: str, now: str) -> None:
    kind, reason = compare({"args": [then, "--n=3"]}, {"args": [now, "--n=3"]})

    assert kind == "volatile"
    assert reason.startswith(f"args[0] was '{then}' and is '{now}': that names this run, not the workload")


@pytest.mark.parametrize("name", ["BUILD_NUMBER", "GITHUB_RUN_ID", "SLURM_JOB_ID", "PID", "CI_PIPELINE_ID"])
def test_a_number_that_its_name_gives_to_a_run_is_volatile(name: str) -> None:
    assert compare({"env": {name: "411"}}, {"env": {name: "412"}})[0] == "volatile"
    assert compare({"env": {name: "411"}}, {"env": {}})[0] == "incomparable"


@pytest.mark.parametrize(
    ("then", "now"),
    [("50", "60"), ("1763712000", "1763798400"), ("--n=50", "--n=60"), ("small", "large"), ("a", 3), ("v2", "v3")],
)
def test_a_parameter_that_changed_is_a_changed_workload(then: object, now: object) -> None:
    assert compare({"args": [then]}, {"args": [now]})[0] == "incomparable"


def test_beside_a_parameter_that_changed_it_is_no_matter() -> None:
    then, now = ["--run=2026-11-21", "--n=3"], ["--run=2026-11-22", "--n=4"]

    assert compare({"args": then}, {"args": now})[0] == "incomparable"
