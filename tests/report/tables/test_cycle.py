"""The timeline of an elastic run beside the fixed one's, with the columns and rows of reports of on/off cycles."""

from __future__ import annotations

import pytest
from support.results import result
from support.timelines import JOB, Timeline, killed

from pytest_distbench.elastic import cycle, kill
from pytest_distbench.jobs.measures.measure import measure
from pytest_distbench.records.elastic import ElasticJob, MembershipPlan, RateChange
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.tables.cycle import CYCLE, setup_name, warm_up_mark
from pytest_distbench.report.tables.elastic import EPOCHS

CYCLED = replace(JOB, plan=MembershipPlan(cycle=cycle(period_s=9.5)))


def case(timeline: Timeline, job: ElasticJob) -> CaseResult:
    elastic, measurements = measure(job, timeline.history)
    return result(
        launches=[LaunchRecord(index=0, outcome="passed", wall_s=20.0, elastic=elastic, measurements=measurements)]
    )


@pytest.fixture
def fixed() -> CaseResult:
    timeline = Timeline()
    timeline.begin(8.0, 0, 1)
    timeline.generation(0, [0, 1], first=11.0, steps=9)
    timeline.finish(19.5, 0, 0, 1)
    return case(timeline, replace(JOB, least=2, start=2))


def test_rows_are_those_of_the_report_with_events_before_the_epoch_they_cost(fixed: CaseResult) -> None:
    section = CYCLE.section([fixed, case(killed(), CYCLED)])

    assert section.header[:6] == [
        "Epoch", "Ondemand 2", "Perf", "Elastic Cycle 9.5 s on and off 1 on demand 1 elastic", "Perf", "Difference (s)",
    ]  # fmt: skip
    assert [row[:6] for row in section.texts] == [
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


def test_the_total_holds_no_cold_start(fixed: CaseResult) -> None:
    [launch] = fixed.launches
    assert launch.elastic is not None
    cold = replace(launch, elastic=replace(launch.elastic, start_s=launch.elastic.start_s + 10))
    section = CYCLE.section([replace(fixed, launches=[cold]), case(killed(), CYCLED)])

    assert section.texts[0][5] == "-10.00000"
    assert section.texts[-1][5] == "+8.50000"


def test_without_a_fixed_run_the_elastic_side_stands_alone() -> None:
    section = CYCLE.section([case(killed(), CYCLED)])

    assert section.header[1] == "Ondemand"
    assert {row[2] for row in section.texts} == {""}


def test_a_setup_is_told_by_nodes_that_stay_and_nodes_that_come_and_go() -> None:
    plan = MembershipPlan(changes=[kill(at_s=3)])

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
    assert launch.elastic is not None
    lr = [RateChange(step=i + 1, epoch=epoch, nodes=nodes, lr=rate) for i, (epoch, nodes, rate) in enumerate(trace)]
    job = replace(launch.elastic, lr=lr)
    epochs = [replace(job.epochs[0], epoch=number) for number in range(7)]

    assert [epoch.epoch for epoch in epochs if warm_up_mark(job, epoch)] == marked


def test_a_warm_up_stands_in_the_row_of_its_epoch(fixed: CaseResult) -> None:
    [launch] = fixed.launches
    assert launch.elastic is not None
    lr = [RateChange(step=1, epoch=0, nodes=2, lr=0.1), RateChange(step=4, epoch=1, nodes=2, lr=0.2)]
    warm = replace(fixed, launches=[replace(launch, elastic=replace(launch.elastic, lr=lr))])
    told = [row[3] for row in CYCLE.section([warm, case(killed(), CYCLED)]).texts if row[0] in ("0", "1")]
    ours = [row[1] for row in CYCLE.section([warm, case(killed(), CYCLED)]).texts if row[0] in ("0", "1")]

    assert ours == ["Epoch 0 took 2.00 (warm-up) loss: 0.6111", "Epoch 1 took 3.00 loss: 0.2056"]
    assert told == ["Epoch 0 took 2.00 loss: 0.6111", "Epoch 1 took 3.00 loss: 0.2056"]
    assert [row[2] for row in EPOCHS.section([warm]).texts][:3] == ["start", "0 (warm-up)", "1"]
