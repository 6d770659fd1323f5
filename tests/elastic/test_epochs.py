"""The tables of trainings: their accuracies, and what each epoch did."""

from __future__ import annotations

import pytest
from support.results import result
from support.timelines import JOB, Timeline, but, killed

from pytest_distbench.elastic import cycle, kill
from pytest_distbench.elastic.epochs import ACCURACY, EPOCHS, FINAL_ACCURACY, warm_up_mark
from pytest_distbench.elastic.measures import measure
from pytest_distbench.elastic.records import ElasticJob, event, runs_of
from pytest_distbench.elastic.tables import setup_name
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.tables.table import DataTable


def launched(*launches: dict[str, float] | list[float]) -> CaseResult:
    """A launch with numbers by name, or with the accuracy of each epoch."""
    measured = [
        [
            Sample(name="accuracy", unit="", better="info", value=v, at={"epoch": epoch})
            for epoch, v in enumerate(values)
        ]
        if isinstance(values, list)
        else [Sample(name=name, unit="", better="info", value=v) for name, v in values.items()]
        for values in launches
    ]
    return result(
        launches=[LaunchRecord(index=i, outcome="passed", wall_s=1.0, measurements=m) for i, m in enumerate(measured)]
    )


def run(name: str, *launches: list[float]) -> CaseResult:
    made = launched(*launches)
    return replace(made, case=replace(made.case, run=name))


def test_an_epoch_has_a_row_and_a_run_a_column() -> None:
    section = ACCURACY.table([run("gang2", [0.5, 0.75]), run("elastic", [0.25, 0.5, 0.9]), result()])
    assert [*section.columns] == ["test", "epoch", "gang2", "elastic"]
    found = [row[1:] for row in section.texts]
    assert found == [["0", "0.5000", "0.2500"], ["1", "0.7500", "0.5000"], ["2", "-", "0.9000"]]

    timeline = killed()
    timeline.lines = [but(line, accuracy=0.5) if line.what == "stepped" else line for line in timeline.lines]
    elastic, _ = measure(JOB, timeline.history)
    noted = run("cycle", [0.5, 0.75])
    noted = replace(noted, launches=[replace(noted.launches[0], events=elastic)])
    section = ACCURACY.table([run("gang2", [0.25, 0.5]), noted])
    assert [*section.columns] == ["test", "epoch", "gang2", "cycle, in training"]

    section = ACCURACY.table([run("gang2", [0.5], [0.75], [0.5]), run("gang4", [0.25])])
    assert section.texts == [["test_a", "0", "0.5000", "0.2500"]]

    assert ACCURACY.table([result(), run("gang2", [0.5])]).rows == []


def trained(ranks: int, *launches: dict[str, float]) -> CaseResult:
    """A training with a batch of 32 per worker."""
    made = launched(*launches)
    around = {"oversubscribed": f"{ranks}-ranks-on-2-cores"} if ranks > 2 else {}
    conditions = replace(made.case.conditions, world_size=ranks, around=around)
    return replace(made, case=replace(made.case, conditions=conditions, params={"batch": 32}))


def test_a_training_has_its_rate_and_its_last_accuracies_in_one_row() -> None:
    two = [
        {"samples_per_second": rate, "final_accuracy": top1, "final_top5": 1.0}
        for rate, top1 in ((100.0, 0.5), (200.0, 0.75), (300.0, 1.0))
    ]
    four = {"samples_per_second": 90.0, "final_accuracy": 0.875, "final_top5": 0.96875}
    section = FINAL_ACCURACY.table([trained(2, *two), trained(4, four), trained(1, {"final_accuracy": 0.5})])

    assert section.header[1:] == [
        "Workers", "batch of each", "processing rate (samples/s)", "top-1", "top-5", "note"
    ]  # fmt: skip
    assert [row[1:] for row in section.texts] == [
        ["2", "32", "200", "0.7500", "1.0000", ""],
        ["4", "32", "90", "0.8750", "0.9688", "oversubscribed: 4 ranks on 2 cores"],
    ]


CYCLED = replace(JOB, plan=cycle(period_s=9.5))


def case(timeline: Timeline, job: ElasticJob) -> CaseResult:
    elastic, measurements = measure(job, timeline.history)
    return result(
        launches=[LaunchRecord(index=0, outcome="passed", wall_s=20.0, events=elastic, measurements=measurements)]
    )


@pytest.fixture
def fixed() -> CaseResult:
    timeline = Timeline()
    timeline.begin(8.0, 0, 1)
    timeline.generation(0, [0, 1], first=11.0, steps=9)
    timeline.finish(19.5, 0, 0, 1)
    return case(timeline, replace(JOB, least=2, start=2))


def cycled(section: DataTable) -> list[list[str]]:
    """The first six cells of the rows of the run behind the fixed one, but for its learning rates."""
    return [row[:6] for row in section.texts if not row[3].startswith("Learning rate")][-9:]


def rows(section: DataTable) -> list[dict[str, object]]:
    return [dict(zip(section.columns, row, strict=True)) for row in section.rows]


def test_rows_are_those_of_the_report_with_events_before_the_epoch_they_cost(fixed: CaseResult) -> None:
    section = EPOCHS.table([fixed, case(killed(), CYCLED)])

    assert section.header[:6] == [
        "Epoch", "Ondemand 2", "Perf", "Elastic Cycle 9.5 s on and off 1 on demand 1 elastic", "Perf", "Difference (s)",
    ]  # fmt: skip
    assert cycled(section) == [
        ["", "Script setup took 3.00000", "3.00000", "Script setup took 3.00000", "3.00000", "+0.00000"],
        ["0", "Epoch 0 took 2.00 loss: 0.6111", "2.00000", "Epoch 0 took 2.00 loss: 0.6111", "2.00000", "+0.00000"],
        ["1", "Epoch 1 took 3.00 loss: 0.2056", "3.00000", "Epoch 1 took 3.00 loss: 0.2056", "3.00000", "+0.00000"],
        ["", "", "", "initialize_workers took 0.500", "0.50000", ""],
        ["", "", "", "Script setup took 0.80000", "0.80000", ""],
        ["", "", "", "Epoch time lost 9.00000 (kill)", "9.00000", ""],
        ["2", "Epoch 2 took 3.00 loss: 0.1263", "3.00000", "Epoch 2 took 11.50 loss: 0.1089", "11.50000", "+8.50000"],
        ["", "unaccounted 0.50000", "0.50000", "unaccounted 0.50000", "0.50000", "+0.00000"],
        [
            "", "Total train time is 8.50000 without the start", "8.50000",
            "Total train time is 17.00000 without the start", "17.00000", "+8.50000",
        ],
    ]  # fmt: skip
    assert [row[3] for row in section.texts][:3] == [
        "Script setup took 3.00000", "Learning rate 0.2 from step 1", "Epoch 0 took 2.00 loss: 0.6111",
    ]  # fmt: skip


def test_changes_and_rates_of_an_epoch_stand_in_the_order_of_their_steps() -> None:
    made = case(killed(), CYCLED)
    [launch] = made.launches
    [change] = [each for each in launch.events if each.what == "change"]
    again = change.after_it["step"]
    rates = [event("rate", t=1.0, step=step, epoch=2, nodes=1, lr=lr) for step, lr in ((again - 1, 0.2), (again, 0.1))]
    told = replace(launch, events=[*(each for each in launch.events if each.what != "rate"), *rates])

    found = [str(row["elastic"]) for row in rows(EPOCHS.table([replace(made, launches=[told])]))]
    assert [text.split(" took ")[0] for text in found[3:-2]] == [
        f"Learning rate 0.2 from step {again - 1}", "initialize_workers", "Script setup",
        "Epoch time lost 9.00000 (kill)", f"Learning rate 0.1 from step {again}", "Epoch 2",
    ]  # fmt: skip


def test_epochs_and_what_is_unaccounted_sum_up_without_the_cold_start(fixed: CaseResult) -> None:
    *_, last = (row for row in rows(EPOCHS.table([fixed, case(killed(), CYCLED)])) if row["epoch"] == 2)
    assert (last["elastic_s"], last["ondemand_s"], last["difference_s"]) == (11.5, 3.0, 8.5)
    assert (last["nodes"], last["changes"], last["stall_s"], last["steps_redone"]) == ("1", "kill to 1", 5.0, 4)

    found = rows(EPOCHS.table([case(killed(), CYCLED)]))
    epochs = [row["elastic_s"] for row in found if str(row["elastic"]).startswith(("Epoch 0", "Epoch 1", "Epoch 2"))]
    *_, unaccounted, total = (row["elastic_s"] for row in found)
    assert sum([*epochs, unaccounted]) == pytest.approx(total)  # type: ignore[list-item]
    assert total == 17.0

    [launch] = fixed.launches
    told, *others = launch.events
    cold = replace(launch, events=[but(told, start_s=told.start_s + 10), *others])
    section = EPOCHS.table([replace(fixed, launches=[cold]), case(killed(), CYCLED)])
    assert cycled(section)[0][5] == "-10.00000"
    assert cycled(section)[-1][5] == "+8.50000"

    section = EPOCHS.table([case(killed(), CYCLED)])
    assert section.header[:3] == ["Epoch", "Elastic Cycle 9.5 s on and off 1 on demand 1 elastic", "Perf"]


@pytest.mark.parametrize(
    ("series", "changes"),
    [
        ([0.1, 0.1, 0.2, 0.2, 0.1], [(1, 0.1), (3, 0.2), (5, 0.1)]),
        ([0.1], [(1, 0.1)]),
        ([1.0, 0.5, 0.25], [(1, 1.0), (2, 0.5), (3, 0.25)]),
    ],
)
def test_a_training_that_records_its_rate_has_the_steps_from_which_on_it_is_another(
    series: list[float], changes: list[tuple[int, float]]
) -> None:
    """The first seed of the first launch that has one: a schedule is no matter of chance."""
    rate = Sample(name="learning_rate", unit="", better="info", value=series[-1], values=series, at={"seed": 0})
    again = replace(rate, values=[9.0], at={"seed": 1})
    launch = LaunchRecord(index=0, outcome="passed", wall_s=1.0, measurements=[rate, again])
    section = EPOCHS.table([result(launches=[launch, launch])])

    assert [(row["step"], row["lr"]) for row in rows(section)] == changes
    assert section.header == ["Training", "ranks", "from step", "lr", "test", "launch"]
    assert {row["nodes"] for row in rows(section)} == {"2"}


def test_the_name_of_a_setup_has_nodes_that_stay_and_nodes_that_come_and_go() -> None:
    plan = [kill(at_s=3)]

    assert [setup_name(job) for job in (replace(JOB, start=2), CYCLED, replace(JOB, plan=plan))] == [
        "2:0", "1:1 (9.5 s cycle)", "1:1 (kill(at_s=3))",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("trace", "marked"),
    [
        ([(0, 2, 0.1)], []),
        ([(0, 2, 0.1), (1, 2, 0.2), (2, 2, 0.3)], [0, 1]),  # by epoch
        ([(0, 2, 0.1), (0, 2, 0.2), (1, 2, 0.3), (1, 2, 0.4)], [0, 1]),  # by step, into the second epoch
        ([(0, 1, 0.1), (1, 1, 0.2), (1, 2, 0.4), (2, 2, 0.6)], [0, 1]),  # a node joins meanwhile
        ([(0, 1, 0.1), (1, 2, 0.2), (3, 1, 0.1)], []),  # nodes alone move it
        ([(0, 2, 0.1), (2, 2, 0.01), (3, 2, 0.1)], []),  # a restart behind a decay is no warm-up
        ([(0, 2, 0.1), (3, 2, 0.2), (5, 2, 0.02)], [0, 1, 2]),
    ],
)
def test_epochs_whose_rate_rises_are_marked_as_warm_up(
    fixed: CaseResult, trace: list[tuple[int, int, float]], marked: list[int]
) -> None:
    [launch] = fixed.launches
    rates = [
        event("rate", t=i, step=i + 1, epoch=epoch, nodes=nodes, lr=lr) for i, (epoch, nodes, lr) in enumerate(trace)
    ]
    [job] = runs_of([*(each for each in launch.events if each.what != "rate"), *rates])
    epochs = [but(job.epochs[0], epoch=number) for number in range(7)]

    assert [epoch.epoch for epoch in epochs if warm_up_mark(job, epoch)] == marked
