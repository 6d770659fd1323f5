"""What ran on what: launches, environment, set-up of trainings, and the record of an experiment."""

from __future__ import annotations

import pytest
from support.results import PAIRED, STORED, result, run, verdict

from pytest_distbench.machine.secrets import MASK
from pytest_distbench.records.case import Conditions
from pytest_distbench.records.environment import Experiment, Gpu, GpuHost
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, RunRecord
from pytest_distbench.records.wire import Event
from pytest_distbench.report.tables import ENVIRONMENT, RECORD


def test_the_environment_table_lists_values_that_differ_between_cases() -> None:
    first = result()
    other = replace(first, environment=replace(first.environment, software={"torch": "2.15.0"}))
    values = [cells[0] for cells in ENVIRONMENT.table([first, other]).rows]

    assert values == ["platform", "device", "cores", "torch", "torch"]


def test_the_environment_of_a_run_on_gpus_has_each_of_them_and_what_joins_them() -> None:
    gpus = [Gpu(name="NVIDIA H200", uuid=f"GPU-{i}", index=i, ecc=True, power_limit_w=700.0) for i in (2, 3)]
    host = GpuHost(
        driver="570", cuda="12.8", cpu="Xeon", gpus=gpus, links=[["", "nvlink4x18"], ["nvlink4x18", ""]],
        unreadable=["GPU 0: lost"],
    )  # fmt: skip
    on_gpus = replace(result(), environment=replace(result().environment, gpu_host=host))
    rows = {cells[0]: cells[1] for cells in ENVIRONMENT.table([on_gpus]).rows}

    assert rows["GPU 2"] == "NVIDIA H200, 700 W, ECC on, GPU-2"
    assert rows["links of GPU 3"] == "GPU 2 nvlink4x18"
    assert (rows["host CPU"], rows["not used"]) == ("Xeon", "GPU 0: lost")


def test_the_environment_has_the_system_first_and_what_is_planned_for_it() -> None:
    made = result()
    system = {"OS": "Ubuntu 24.04", "kernel": "Linux 6.8"}
    there = replace(made, environment=replace(made.environment, system=system))
    planned = run(there, experiment=Experiment(planned={"torch": "2.15", "OS": "26.04"}))
    section = ENVIRONMENT.table([there], {"run": planned})

    assert section.header == ["Stack", "current", "Future"]
    assert section.texts[3:5] == [["OS", "Ubuntu 24.04", "26.04"], ["kernel", "Linux 6.8", ""]]
    assert section.texts[5:] == [["torch", "2.14.0", "2.15"]]
    assert ENVIRONMENT.table([there]).header == ["Stack", "current"]


REPORT_001 = [
    "Description", "Time (GMT)", "Storage options", "workload", "Cluster", "Behind a gateway", "# of servers",
    "IPs/DNS", "Pointer to cluster info", "Pointer to results", "Expected results", "s3fs config", "input data set",
    "Brief summary and next steps",
]  # fmt: skip
"""The fourteen fields of its record."""


def row_of(record: RunRecord) -> dict[str, str]:
    section = RECORD.table(record.results, {"run": record})
    [texts] = section.texts
    return dict(zip(section.header, texts, strict=True))


def of(case: CaseResult, **fields: str) -> RunRecord:
    return run(case, experiment=Experiment(statements={"": fields}), commit="3f2a91c0d4")


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


def test_what_was_stated_counts_and_planned_things_are_seen() -> None:
    case = result(outcome="failed", headline="1 metric regressed")
    row = row_of(of(case, cluster="Cruiser10", expected="220 images/s", summary="Requires further investigation"))
    assert (row["Cluster"], row["Expected results"]) == ("Cruiser10", "220 images/s")
    assert row["Brief summary and next steps"] == "1 metric regressed. Requires further investigation"

    row = row_of(of(result(), description="1 node", rack="B 7", storage="local", people="ada"))
    assert row["Description"] == "test_a[ws2]: 1 node"
    assert (row["Storage options"], row["Also stated"]) == ("local", "rack: B 7; people: ada")

    made = result()
    case = replace(made, case=replace(made.case, params={"backup_dir": "s3://10.1.2.3/backup"}))
    assert row_of(run(case, settings={"addresses": "true"}))["backup folder"] == "backup_dir=s3://10.1.2.3/backup"

    new = replace(STORED, software={})
    assert row_of(run(result(reference=PAIRED)))["Expected results"] == "main (123)"
    assert row_of(run(result(reference=new)))["Expected results"] == "-"

    assert row_of(run(result(), settings={"out": "kept"}))["Pointer to results"] == "this run record; logs in kept/logs"


def test_what_report_000_writes_down_is_seen_where_there_is_some() -> None:
    made = result()
    params = {"warmup_epochs": 5, "multipliers": [0.1, 0.01], "backup_dir": "s3://10.1.2.3/backup", "lr": 0.1}
    launch = replace(made.launches[0], events=[Event(t=0.0, what="plan", facts={"schedule": "2 nodes"})])
    where = replace(made.environment, system={"machine": "Amazon EC2 p3.16xlarge"})
    case = replace(made, case=replace(made.case, params=params), environment=where, launches=[launch])
    row = row_of(of(case))

    assert [*row][len(REPORT_001) :] == ["instance type", "schedule", "warm-up", "multipliers", "backup folder"]
    assert row["instance type"] == "Amazon EC2 p3.16xlarge"
    assert row["schedule"] == "2 nodes"
    assert (row["warm-up"], row["multipliers"]) == ("warmup_epochs=5", "multipliers=[0.1, 0.01]")
    assert row["backup folder"] == f"backup_dir=s3://{MASK}/backup"


def test_the_kind_of_data_and_of_storage_is_part_of_what_defines_a_number() -> None:
    made = result()
    rate = Sample(
        name="samples_per_second", unit="samples/s", better="higher", value=1.0,
        identity={"data": "generated", "storage": "object"},
    )  # fmt: skip
    row = row_of(of(replace(made, launches=[replace(made.launches[0], measurements=[rate])])))

    assert (row["input data set"], row["Storage options"]) == ("generated", "object")


@pytest.mark.parametrize(
    ("conditions", "servers"),
    [({}, "1"), ({"launcher": "somebodys"}, "-"), ({"launcher": "elastic-fast", "kind": "elastic"}, "1")],
)
def test_ranks_of_a_launcher_that_is_not_known_are_on_nobody_knows_how_many_servers(
    conditions: dict[str, str], servers: str
) -> None:
    made = result()
    under = Conditions(**{"world_size": 2, "backend": "gloo", "launcher": "warm", **conditions})  # type: ignore[arg-type]

    assert row_of(of(replace(made, case=replace(made.case, conditions=under))))["# of servers"] == servers
