"""The table of what trainings consist of."""

from __future__ import annotations

from support.results import result, run

from pytest_distbench.records.case import Conditions
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.workloads.tables.cost import SETUP, setup_rows

TOLD = {"model": "ResNet", "optimizer": "SGD(lr=0.02)", "schedule": "halved on a plateau", "batch": 128}


def trained(workers: int, *measured: Sample, told: bool = True, **params: object) -> CaseResult:
    parameters = Sample(name="parameters", unit="", better="exact", value=23_555_082, facts=TOLD if told else {})
    tensors = Sample(name="tensors", unit="", better="exact", value=214)
    launch = LaunchRecord(index=0, outcome="passed", wall_s=1.0, measurements=[parameters, tensors, *measured])
    made = result(launches=[launch])
    conditions = Conditions(world_size=workers, backend="gloo", launcher="warm", around={"cpus": "0.3"})
    environment = replace(made.environment, system={"machine": "n1-standard-4", "memory": "15 GiB"})
    case = replace(made.case, id=f"ws{workers}", conditions=conditions, params=params, run="workers")
    return replace(made, case=case, environment=environment)


def values_of(*results: CaseResult) -> dict[str, str]:
    return {parameter: ", ".join(values) for _, parameter, values in setup_rows(results)}


def test_a_set_up_says_what_was_told_what_was_measured_and_where_it_ran() -> None:
    goal = Sample(
        name="steps_to_accuracy", unit="steps", better="steps", value=60, identity={"target": 0.8, "every": 5}
    )
    found = values_of(trained(1, goal, communication="off", batch=128, mode=None, dtype="float16"))

    assert found == {
        **{name: str(value) for name, value in TOLD.items()},
        "trainable parameters": "23,555,082",
        "trainable tensors": "214",
        "dtype": "float16",
        "goal": "accuracy 0.8",
        "steps between evaluations": "5",
        "workers": "1",
        "backend": "gloo",
        "CPUs of a worker": "0.3",
        "device": "X",
        "machine": "n1-standard-4",
        "memory": "15 GiB",
        "CPU cores": "2",
    }


def test_set_ups_stand_by_world_size_and_only_of_what_trains() -> None:
    found = values_of(
        trained(4, told=False, batch=8), trained(1, told=False, batch=32), trained(2, told=False, batch=8)
    )
    assert (found["workers"], found["batch"]) == ("1, 2, 4", "32, 8")

    measured = trained(1, told=False, url="tcp://10.11.12.13:80")
    assert not setup_rows([result()])
    assert "10.11.12.13" not in values_of(measured)["url"]
    assert ["test_a", "trainable tensors", "214"] in SETUP.table([measured], {"run": run(measured)}).texts
