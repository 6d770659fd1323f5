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
from pytest_distbench.report.tables.accuracy import ACCURACY, FINAL_ACCURACY


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


def trained(ranks: int, *launches: dict[str, float]) -> CaseResult:
    """With a batch of 32 for each worker."""
    records = [
        LaunchRecord(
            index=i,
            outcome="passed",
            wall_s=1.0,
            measurements=[Measurement(name=name, unit="", better="info", value=v) for name, v in values.items()],
        )
        for i, values in enumerate(launches)
    ]
    made = result(launches=records)
    around = {"oversubscribed": f"{ranks}-ranks-on-2-cores"} if ranks > 2 else {}
    conditions = replace(made.case.conditions, world_size=ranks, around=around)
    return replace(made, case=replace(made.case, conditions=conditions, params={"batch": 32}))


def test_a_training_has_its_rate_and_its_last_accuracies_in_one_row() -> None:
    two = [
        {"samples_per_second": rate, "final_accuracy": top1, "final_top5": 1.0}
        for rate, top1 in ((100.0, 0.5), (200.0, 0.75), (300.0, 1.0))
    ]
    four = {"samples_per_second": 90.0, "final_accuracy": 0.875, "final_top5": 0.96875}
    section = FINAL_ACCURACY.section([trained(2, *two), trained(4, four), trained(1, {"final_accuracy": 0.5})])

    assert section.header[1:] == [
        "Workers", "batch of each", "processing rate (samples/s)", "top-1", "top-5", "note"
    ]  # fmt: skip
    assert [row[1:] for row in section.texts] == [
        ["2", "32", "200", "0.7500", "1.0000", ""],
        ["4", "32", "90", "0.8750", "0.9688", "oversubscribed: 4 ranks on 2 cores"],
    ]
