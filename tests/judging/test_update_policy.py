"""What an update measures anew, what it rewrites, and what is fit to be a baseline."""

from __future__ import annotations

import pytest
from support.metrics import baseline
from support.results import verdict
from support.stores import entry

from pytest_distbench.judging.update_policy import few_launches, is_wanted, only_judges, why_not_storable
from pytest_distbench.records.kinds import Better
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.record import replace


def launches(*values: float | None, better: Better = "lower", name: str = "step") -> list[LaunchRecord]:
    return [
        LaunchRecord(
            index=i,
            outcome="passed",
            wall_s=1.0,
            measurements=[Measurement(name=name, unit="s", better=better, value=value)],
        )
        for i, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("mode", "new", "stored"),
    [("new", False, True), ("failed", True, False), ("changed", False, False), ("all", False, False)],
)
def test_an_update_leaves_to_the_comparison_what_its_mode_does_not_want(mode: str, new: bool, stored: bool) -> None:
    assert (only_judges(mode, None), only_judges(mode, entry(1.0))) == (new, stored)


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("all", {"unchanged", "improved", "regressed", "inconclusive", "incomparable", "missing"}),
        ("new", set()),
        ("failed", {"regressed"}),
        ("changed", {"improved", "regressed", "incomparable", "missing"}),
    ],
)
def test_verdicts_that_rewrite_an_entry(mode: str, wanted: set[str]) -> None:
    kinds = ["unchanged", "improved", "regressed", "inconclusive", "incomparable", "missing"]

    assert {kind for kind in kinds if is_wanted(mode, [verdict(kind)], is_new=False)} == wanted


def test_where_there_is_no_entry_all_but_failed_write_one() -> None:
    assert [m for m in ("all", "new", "failed", "changed") if is_wanted(m, [verdict()], is_new=True)] == [
        "all",
        "new",
        "changed",
    ]


def test_what_is_only_shown_rewrites_nothing() -> None:
    assert not is_wanted("changed", [verdict("missing", better="info")], is_new=False)


def test_two_values_of_a_clock_are_storable() -> None:
    assert why_not_storable(launches(1.0, 1.1)) == ""


def test_one_value_of_an_exact_number_is_storable_and_of_a_clock_is_not() -> None:
    assert why_not_storable(launches(7.0, better="exact")) == ""
    assert why_not_storable(launches(1.0)).startswith("step has one value, which says nothing about its noise")
    assert why_not_storable(launches(1.0), fewest=1) == ""


def test_only_shown_numbers_are_no_baseline() -> None:
    assert why_not_storable(launches(1.0, 2.0, better="info")) == "nothing was measured that can be judged"


def test_a_launch_without_a_value_is_no_baseline() -> None:
    assert why_not_storable(launches(1.0, None, None)).startswith("step has no value in 2 of 3 launches")


def test_a_clock_that_timed_nothing_is_no_baseline() -> None:
    """The next run, slower by any factor, would be held against nothing."""
    idle = launches(0.0, 0.0)
    assert why_not_storable(idle) == "step: 0 s is no time that anything takes"
    timed = [
        replace(
            launch, measurements=[replace(m, companions={"cpu_s": 0.1, "host_s": 0.1}) for m in launch.measurements]
        )
        for launch in idle
    ]

    assert why_not_storable(timed).startswith("step: the clock reads 0 s: nothing ran on the device in this loop")
    assert "took 100 ms per iteration" in why_not_storable(timed)


def test_of_the_seeds_of_a_training_some_may_miss_the_goal() -> None:
    assert why_not_storable(launches(100.0, None, better="steps")) == ""
    assert why_not_storable(launches(None, None, better="steps")).startswith("step has no value in 2 of 2 launches")


def test_metrics_that_scatter_and_have_few_values_are_counted() -> None:
    metrics = {"a": baseline([1.0] * 4), "b": baseline([1.0] * 5), "c": baseline([1.0], "exact")}

    assert few_launches(metrics) == {"a": 4}
