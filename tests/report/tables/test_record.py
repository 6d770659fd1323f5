"""The record of an experiment: what was stated, and else what the run knows."""

from __future__ import annotations

import pytest
from support.results import PAIRED, STORED, result, run, verdict
from support.timelines import JOB, killed

from pytest_distbench.jobs.measures.measure import measure
from pytest_distbench.machine.secrets import MASK
from pytest_distbench.records.case import Conditions
from pytest_distbench.records.experiment import Experiment, Statement
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, RunRecord
from pytest_distbench.report.tables.record import RECORD

REPORT_001 = [
    "Description", "Time (GMT)", "Storage options", "workload", "Cluster", "Behind a gateway", "# of servers",
    "IPs/DNS", "Pointer to cluster info", "Pointer to results", "Expected results", "s3fs config", "input data set",
    "Brief summary and next steps",
]  # fmt: skip
"""The fourteen fields of its record."""


def row_of(record: RunRecord) -> dict[str, str]:
    section = RECORD.section(record.results, {"run": record})
    [texts] = section.texts
    return dict(zip(section.header, texts, strict=True))


def of(case: CaseResult, **fields: str) -> RunRecord:
    return run(case, experiment=Experiment(statements=[Statement(fields=fields)]), commit="3f2a91c0d4")


def test_a_run_fills_in_what_it_knows_of_report_001s_fields() -> None:
    row = row_of(of(result(verdict())))

    assert [*row] == REPORT_001
    assert row == {
        "Description": "test_a[ws2]: 2 ranks, gloo, warm",
        "Time (GMT)": "2026-01-02 03:04:05 GMT",
        "Storage options": "-",
        "workload": "suites/test_a.py::test_a[ws2] at 3f2a91c0d4",
        "Cluster": "cpu-x",
        "Behind a gateway": "-",
        "# of servers": "1",
        "IPs/DNS": "-",
        "Pointer to cluster info": "X, 2 cores",
        "Pointer to results": "this run record",
        "Expected results": "baseline cpu-x/suites/test_a.py/test_a/ws2.gloo.warm",
        "s3fs config": "-",
        "input data set": "-",
        "Brief summary and next steps": "passed",
    }


def test_what_was_stated_counts_and_follows_what_became_of_the_test() -> None:
    case = result(outcome="failed", headline="1 metric regressed")
    row = row_of(of(case, cluster="Cruiser10", expected="220 images/s", summary="Requires further investigation"))

    assert (row["Cluster"], row["Expected results"]) == ("Cruiser10", "220 images/s")
    assert row["Brief summary and next steps"] == "1 metric regressed. Requires further investigation"


def test_a_description_that_was_stated_follows_the_case_that_it_is_of() -> None:
    assert row_of(of(result(), description="1 node"))["Description"] == "test_a[ws2]: 1 node"


def test_what_report_000_writes_down_is_seen_where_there_is_some() -> None:
    made = result()
    params = {"warmup_epochs": 5, "multipliers": [0.1, 0.01], "backup_dir": "s3://10.1.2.3/backup", "lr": 0.1}
    case = replace(
        made,
        case=replace(made.case, params=params),
        environment=replace(made.environment, system={"machine": "Amazon EC2 p3.16xlarge"}),
        launches=[replace(made.launches[0], elastic=measure(JOB, killed().history)[0])],
    )
    row = row_of(of(case))

    assert [*row][len(REPORT_001) :] == ["instance type", "schedule", "warm-up", "multipliers", "backup folder"]
    assert row["instance type"] == "Amazon EC2 p3.16xlarge"
    assert row["schedule"] == f"{JOB.nodes} nodes, {JOB.start} at the start, {JOB.plan}"
    assert (row["warm-up"], row["multipliers"]) == ("warmup_epochs=5", "multipliers=[0.1, 0.01]")
    assert row["backup folder"] == f"backup_dir=s3://{MASK}/backup"


def test_addresses_of_parameters_are_seen_where_the_run_was_to_keep_them() -> None:
    made = result()
    case = replace(made, case=replace(made.case, params={"backup_dir": "s3://10.1.2.3/backup"}))

    assert row_of(run(case, settings={"addresses": "true"}))["backup folder"] == "backup_dir=s3://10.1.2.3/backup"


def test_the_kind_of_data_and_of_storage_is_part_of_what_defines_a_number() -> None:
    made = result()
    rate = Measurement(
        name="samples_per_second", unit="samples/s", better="higher", value=1.0,
        identity={"data": "generated", "storage": "object"},
    )  # fmt: skip
    row = row_of(of(replace(made, launches=[replace(made.launches[0], measurements=[rate])])))

    assert (row["input data set"], row["Storage options"]) == ("generated", "object")


def test_what_ran_beside_is_expected_and_without_a_baseline_nothing_is() -> None:
    new = replace(STORED, software={})

    assert row_of(run(result(reference=PAIRED)))["Expected results"] == "main (123)"
    assert row_of(run(result(reference=new)))["Expected results"] == "-"


@pytest.mark.parametrize(
    ("conditions", "servers"),
    [
        ({}, "1"),
        ({"launcher": "somebodys"}, "-"),
        ({"launcher": "elastic-fast", "kind": "elastic"}, "1"),
    ],
)
def test_ranks_of_a_launcher_that_is_not_known_are_on_nobody_knows_how_many_servers(
    conditions: dict[str, str], servers: str
) -> None:
    made = result()
    under = Conditions(**{"world_size": 2, "backend": "gloo", "launcher": "warm", **conditions})  # type: ignore[arg-type]

    assert row_of(of(replace(made, case=replace(made.case, conditions=under))))["# of servers"] == servers


def test_logs_that_were_kept_are_pointed_to() -> None:
    assert row_of(run(result(), settings={"logs": "kept"}))["Pointer to results"] == "this run record; logs in kept"
