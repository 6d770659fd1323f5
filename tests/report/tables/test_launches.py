"""What ran, and on what."""

from __future__ import annotations

from support.results import result, run

from pytest_distbench.records.experiment import Experiment
from pytest_distbench.records.gpu import Gpu, GpuHost
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.record import replace
from pytest_distbench.report.tables.launches import ENVIRONMENT, LAUNCHES


def test_the_environment_tells_what_cases_differ_in() -> None:
    first = result()
    other = replace(first, environment=replace(first.environment, software={"torch": "2.15.0"}))
    values = [cells[0].value for cells in ENVIRONMENT.section([first, other]).rows]

    assert values == ["platform", "device", "cores", "torch", "torch"]


def test_the_environment_of_a_run_on_gpus_has_each_of_them_and_what_joins_them() -> None:
    gpus = [Gpu(name="NVIDIA H200", uuid=f"GPU-{i}", index=i, ecc=True, power_limit_w=700.0) for i in (2, 3)]
    host = GpuHost(
        driver="570", cuda="12.8", cpu="Xeon", gpus=gpus, links=[["", "nvlink4x18"], ["nvlink4x18", ""]],
        unreadable=["GPU 0: lost"],
    )  # fmt: skip
    on_gpus = replace(result(), environment=replace(result().environment, gpu_host=host))
    rows = {cells[0].value: cells[1].value for cells in ENVIRONMENT.section([on_gpus]).rows}

    assert rows["GPU 2"] == "NVIDIA H200, 700 W, ECC on, GPU-2"
    assert rows["links of GPU 3"] == "GPU 2 nvlink4x18"
    assert (rows["host CPU"], rows["not used"]) == ("Xeon", "GPU 0: lost")


def test_the_environment_has_the_system_first_and_what_is_planned_for_it() -> None:
    made = result()
    system = {"OS": "Ubuntu 24.04", "kernel": "Linux 6.8"}
    there = replace(made, environment=replace(made.environment, system=system))
    planned = run(there, experiment=Experiment(planned={"torch": "2.15", "OS": "26.04"}))
    section = ENVIRONMENT.section([there], {"run": planned})

    assert section.header == ["Stack", "current", "Future"]
    assert section.texts[3:] == [
        ["OS", "Ubuntu 24.04", "26.04"],
        ["kernel", "Linux 6.8", ""],
        ["torch", "2.14.0", "2.15"],
    ]
    assert ENVIRONMENT.section([there]).header == ["Stack", "current"]


def test_a_launch_has_its_end_its_time_and_the_first_line_of_its_reason() -> None:
    failed = LaunchRecord(index=1, outcome="failed", wall_s=3.0, reason="hung\nin body", peak_memory_bytes=2**20)

    assert LAUNCHES.section([result(), result(launches=[failed])]).texts == [
        ["test_a[ws2]", "1", "passed", "1.5 s", "-", "-", ""],
        ["test_a[ws2]", "2", "failed", "3 s", "1 MiB", "-", "hung"],
    ]
