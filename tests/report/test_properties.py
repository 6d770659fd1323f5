"""The numbers of a test as named texts, for the reports of other tools."""

from __future__ import annotations

from typing import Any

import pytest
from support.results import point, result, verdict

from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.properties import MOST, number_properties


def named(case: CaseResult, name: str) -> CaseResult:
    return replace(case, case=replace(case.case, run=name))


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (verdict("beyond-threshold"), "30 ms, regressed: +50.0 % (threshold +10%), baseline 20 ms"),
        (verdict("within-threshold", ratio=1.0), "20 ms, unchanged: +0.0 % (threshold +10%), baseline 20 ms"),
        (
            verdict("beyond-threshold", better="exact", threshold=0.0, unit="", current=8.0, baseline=7.0),
            "8, regressed: +14.3 % (exact), baseline 7",
        ),
        (verdict("no-baseline", baseline=None, threshold=None), "30 ms, no baseline"),
        (
            verdict("other-workload", baseline=None, threshold=None, reason="another workload"),
            "30 ms, inconclusive: another workload",
        ),
        (
            verdict("communication", current=None, baseline=None, threshold=None, reason="1 all_reduce"),
            "changed: 1 all_reduce",
        ),
        (verdict("no-baseline", better="info", baseline=None), "30 ms"),
    ],
)
def test_a_number_has_its_value_its_verdict_its_limit_and_what_it_was_compared_with(told: Any, text: str) -> None:
    assert number_properties([result(told)]) == [("distbench.step", text)]


def test_exported_names_are_short_and_those_of_baseline_files() -> None:
    cases = [result(point(4096)), named(result(verdict()), "one"), named(result(verdict(metric="gain")), "gain")]
    assert [name for name, _ in number_properties(cases)] == [
        "distbench.latency[message_bytes=4096]",
        "distbench.one.step",
        "distbench.gain",
    ]

    long = verdict("noise", metric="m" * 1000, reason="r" * 1000)
    secret = verdict("noise", metric="a[token=hunter2x]", reason="password=hunter2x \x1b[31m")
    found = number_properties([result(long, secret)])
    assert all(len(name) <= 170 and len(text) <= 250 for name, text in found)
    assert "hunter2x" not in str(found)
    assert "\x1b" not in found[1][1]


def test_what_was_only_measured_is_shown_as_the_median_of_its_launches() -> None:
    launches = [
        LaunchRecord(
            index=i,
            outcome="passed",
            wall_s=1.0,
            measurements=[Sample(name="step", unit="s", better="lower", value=value)],
        )
        for i, value in enumerate([0.02, 0.04, 0.03])
    ]

    assert number_properties([result(launches=launches)]) == [("distbench.step", "30 ms")]


def test_of_many_numbers_those_that_did_not_stay_are_kept_in_the_order_of_the_sweep() -> None:
    sizes = range(1, 2 * MOST)
    slow = {5, 2 * MOST - 1}
    found = number_properties(
        [result(*[point(n, "beyond-threshold" if n in slow else "within-threshold") for n in sizes])]
    )
    names = [name for name, _ in found]

    assert len(found) == MOST
    assert names[-2] == f"distbench.latency[message_bytes={max(slow)}]"
    assert names[:6] == [f"distbench.latency[message_bytes={n}]" for n in range(1, 7)]
    assert found[-1] == ("distbench.more", f"{MOST} numbers are left out; --distbench-json FILE has all")
