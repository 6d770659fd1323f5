"""The table of scaling experiments, on the numbers of report 003."""

from __future__ import annotations

from typing import Any

import pytest
from support.results import result, verdict

from pytest_distbench.records.case import Conditions
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.tables.scaling import SCALING, scaling_rows

MOBILENET = {1: 353.6, 2: 503.0, 4: 680.0, 8: 648.0}
"""Images per second on report 003's CPU cluster."""
COMMUNICATION = {1: 0.0, 2: 0.24, 4: 0.447, 8: 0.667}


def case(
    run: str, workers: int, rate: float | None, *, communication: str = "on", around: dict[str, str] | None = None
) -> CaseResult:
    made = result()
    facts: dict[str, Any] = {"nodes": workers, "ranks_per_node": 1, "threads": 4}
    measured = {"samples_per_second": rate, "samples_per_second_mean": rate, "samples_per_second_uncertainty": 0.5}
    launch = LaunchRecord(
        index=0,
        outcome="passed",
        wall_s=1.0,
        measurements=[
            Measurement(name=name, unit="samples/s", better="info", value=value, facts=facts)
            for name, value in measured.items()
        ],
    )
    conditions = Conditions(world_size=workers, backend="gloo", launcher="warm", around=around or {})
    params = {"batch": 64, "communication": communication, "scaling": "weak"}
    named = replace(made.case, run=run, names_size=True, conditions=conditions, params=params)
    return replace(made, case=named, launches=[launch])


def mobilenet(prefix: str = "") -> list[CaseResult]:
    """In no order."""
    alone = [
        case(f"{prefix}alone", n, rate / (1 - COMMUNICATION[n]), communication="off")
        for n, rate in MOBILENET.items()
        if n > 1
    ]
    together = [case(f"{prefix}together", n, rate) for n, rate in MOBILENET.items()]
    return [*alone, *reversed(together), case(f"{prefix}local", 1, 353.6, communication="off")]


def column(results: list[CaseResult], heading: str) -> list[str]:
    section = SCALING.section(results)
    return [row[section.header.index(heading)] for row in section.texts]


def test_the_rows_of_report_003_are_reproduced() -> None:
    results = mobilenet()

    assert column(results, "Workers") == ["1 (local)", "1", "2", "4", "8"]
    assert column(results, "Speedup Ratio") == ["1.00", "1.00", "1.42", "1.92", "1.83"]
    assert column(results, "communication") == ["0.0%", "0.0%", "24.0%", "44.7%", "66.7%"]
    assert column(results, "computation/communication") == ["-", "10 : 0", "10 : 3.2", "10 : 8.1", "10 : 20"]
    assert column(results, "Scaling efficiency") == ["100.0%", "100.0%", "71.1%", "48.1%", "22.9%"]
    assert column(results, "nodes x ranks")[-1] == "8 x 1"


def test_the_gain_of_each_doubling_is_told_and_negative_scaling_is_flagged() -> None:
    results = mobilenet()

    assert column(results, "gain per doubling") == ["-", "-", "1.42", "1.35", "0.95"]
    assert column(results, "Notes") == ["", "", "", "", "negative scaling"]


def test_a_size_that_is_no_doubling_is_told_per_doubling() -> None:
    """From 2 to 8 workers there are two: 4 times the rate is 2 for each."""
    results = [case("together", 2, 100.0), case("together", 8, 400.0)]

    assert column(results, "gain per doubling") == ["-", "2.00"]


def test_what_was_judged_stands_in_the_place_of_what_medians_give() -> None:
    judged = verdict(
        "regressed",
        metric="scaling_efficiency[workers=2]",
        at={"workers": 2},
        current=0.5,
        baseline=0.7,
        better="higher",
    )
    share = verdict(metric="computation_share[workers=2]", at={"workers": 2}, current=0.6, better="higher")
    results = [*mobilenet(), result(judged), result(share)]

    assert column(results, "Scaling efficiency")[2] == "50.0%"
    assert column(results, "communication")[2] == "40.0%"
    assert [column(results, name)[2] for name in ("baseline", "verdict")] == ["70.0%", "regressed"]
    assert column(results, "verdict")[1] == ""


def test_oversubscribed_rows_say_so() -> None:
    results = [
        case("local", 1, 100.0, communication="off"),
        case("together", 4, 90.0, around={"oversubscribed": "2-cores"}),
    ]

    assert column(results, "Notes") == ["", "oversubscribed: 2 cores"]


def test_experiments_of_one_test_stand_apart_by_their_names() -> None:
    rows = scaling_rows([*mobilenet("a-"), *mobilenet("b-")])

    assert [row.workers for row in rows] == [1, 1, 2, 4, 8] * 2
    assert column([*mobilenet("a-"), *mobilenet("b-")], "Description")[::5] == ["test_a[ws2] a", "test_a[ws2] b"]


@pytest.mark.parametrize("results", [[], [result()], [case("together", 2, None)]])
def test_what_is_no_experiment_or_has_no_rate_has_no_row(results: list[CaseResult]) -> None:
    assert scaling_rows(results) == []
