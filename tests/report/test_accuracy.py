"""Accuracies epoch by epoch, the runs of a test side by side."""

from __future__ import annotations

from support.results import result

from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement, Scalar
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.accuracy import accuracy_section


def run(name: str, *launches: list[float]) -> CaseResult:
    def measured(values: list[float]) -> list[Measurement]:
        places: list[dict[str, Scalar]] = [{"epoch": epoch} for epoch in range(len(values))]
        return [
            Measurement(name="accuracy", unit="", better="info", value=v, at=at)
            for v, at in zip(values, places, strict=True)
        ]

    records = [
        LaunchRecord(index=i, outcome="passed", wall_s=1.0, measurements=measured(values))
        for i, values in enumerate(launches)
    ]
    made = result(launches=records)
    return replace(made, case=replace(made.case, key=replace(made.case.key, case_id=f"ws2:{name}")))


def test_an_epoch_has_a_row_and_a_run_a_column() -> None:
    section = accuracy_section([run("gang2", [0.5, 0.75]), run("elastic", [0.25, 0.5, 0.9]), result()])

    assert [*section.columns] == ["test", "epoch", "gang2", "elastic"]
    assert [row[1:] for row in section.texts] == [
        ["0", "0.5000", "0.2500"],
        ["1", "0.7500", "0.5000"],
        ["2", "-", "0.9000"],
    ]


def test_of_several_launches_the_median_is_shown() -> None:
    assert accuracy_section([run("gang2", [0.5], [0.75], [0.5])]).rows[0][2].value == 0.5


def test_runs_without_accuracies_of_epochs_have_no_row() -> None:
    assert accuracy_section([result()]).rows == []
