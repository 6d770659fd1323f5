"""Charts of several cases together."""

from __future__ import annotations

import pytest
from support.results import result

from pytest_distbench.records.breakdown import Breakdown, PartShare
from pytest_distbench.records.case import Conditions
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.page.chart import Bars, Lines
from pytest_distbench.report.page.charts.runs import cost, phases, scaling


def on(ranks: int, launch: LaunchRecord, **params: object) -> CaseResult:
    made = result(launches=[launch])
    conditions = Conditions(world_size=ranks, backend="gloo", launcher="warm")
    case = replace(made.case, id=f"ws{ranks}", conditions=conditions, params=params)
    return replace(made, case=case)


def trained(workers: int, step_s: float, communication: str = "on") -> CaseResult:
    facts = {"loop": "step", "communication": communication}
    measured = [
        Measurement(name="samples_per_step", unit="", better="exact", value=workers * 8),
        Measurement(name="step", unit="s", better="lower", value=step_s),
        Measurement(
            name="samples_per_second", unit="samples/s", better="info", value=workers * 8 / step_s, facts=facts
        ),
    ]
    launch = LaunchRecord(index=0, outcome="passed", wall_s=1.0, measurements=measured)
    made = on(workers, launch, communication=communication)
    return replace(made, case=replace(made.case, id="", run=communication))


def with_phases(ranks: int, *names: str) -> CaseResult:
    parts = [PartShare(path=[name], times_s=[1.0] * ranks) for name in names]
    breakdown = Breakdown(times_s=[4.0] * ranks, parts=parts)
    return on(ranks, LaunchRecord(index=0, outcome="passed", wall_s=1.0, breakdowns={"step": breakdown}))


def test_speed_up_has_the_ideal_beside_it_and_efficiency_is_a_share() -> None:
    speedup, efficiency = scaling([trained(1, 1.0, "off"), trained(1, 1.0), trained(2, 1.25), trained(4, 2.0)])

    assert isinstance(speedup, Lines)
    assert isinstance(efficiency, Lines)
    assert [s.name for s in speedup.series] == ["test_a[]", "ideal"]
    assert speedup.series[0].points == [(1, 1.0), (2, 1.6), (4, 2.0)]
    assert speedup.series[1].points == [(1, 1), (2, 2), (4, 4)]
    assert efficiency.series[0].points == [(1, 1.0), (2, 0.8), (4, 0.5)]
    assert efficiency.y.unit == "%"


def test_phases_of_a_test_stand_below_each_other_by_world_size() -> None:
    [chart] = phases([with_phases(4, "forward", "send"), with_phases(1, "forward")])

    assert isinstance(chart, Bars)
    assert chart.parts == ["forward", "send", "unaccounted"]
    assert chart.rows == [("1 rank", [1.0, 0.0, 3.0]), ("4 ranks", [1.0, 1.0, 2.0])]
    assert not list(phases([with_phases(2, "forward")]))


def test_cost_is_ranks_times_time_and_points_have_their_ranks() -> None:
    [chart] = cost([trained(1, 1.0), trained(4, 2.0)])

    assert isinstance(chart, Lines)
    assert chart.series[0].labels == ["1 rank", "4 ranks"]
    assert [y for _, y in chart.series[0].points] == [1.0, 2.0]
    assert chart.series[0].points[1][0] == pytest.approx(2 * chart.series[0].points[0][0])
    assert not list(cost([trained(1, 1.0)]))
