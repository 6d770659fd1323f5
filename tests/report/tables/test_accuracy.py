"""Accuracies epoch by epoch, the runs of a test side by side."""

from __future__ import annotations

from support.results import result
from support.timelines import JOB, killed

from pytest_distbench.jobs.measures.measure import measure
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement, Scalar
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.timeline import Stepped
from pytest_distbench.report.tables.accuracy import ACCURACY


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
    return replace(made, case=replace(made.case, run=name))


def test_an_epoch_has_a_row_and_a_run_a_column() -> None:
    section = ACCURACY.section([run("gang2", [0.5, 0.75]), run("elastic", [0.25, 0.5, 0.9]), result()])

    assert [*section.columns] == ["test", "epoch", "gang2", "elastic"]
    assert [row[1:] for row in section.texts] == [
        ["0", "0.5000", "0.2500"],
        ["1", "0.7500", "0.5000"],
        ["2", "-", "0.9000"],
    ]


def test_what_was_noted_in_training_has_a_column_that_says_so() -> None:
    timeline = killed()
    timeline.lines = [replace(line, accuracy=0.5) if isinstance(line, Stepped) else line for line in timeline.lines]
    elastic, _ = measure(JOB, timeline.history)
    noted = run("cycle", [0.5, 0.75])
    noted = replace(noted, launches=[replace(noted.launches[0], elastic=elastic)])
    section = ACCURACY.section([run("gang2", [0.25, 0.5]), noted])

    assert [*section.columns] == ["test", "epoch", "gang2", "cycle, in training"]


def test_of_several_launches_the_median_is_shown() -> None:
    section = ACCURACY.section([run("gang2", [0.5], [0.75], [0.5]), run("gang4", [0.25])])

    assert section.texts == [["test_a", "0", "0.5000", "0.2500"]]


def test_a_run_that_has_none_beside_it_has_no_row() -> None:
    assert ACCURACY.section([result(), run("gang2", [0.5])]).rows == []
