"""Charts of sweeps, phases and links below a case; of scaling, phases and cost above their tables."""

from __future__ import annotations

from datetime import date

import pytest
from support.results import point, result

from pytest_distbench.records.case import Conditions
from pytest_distbench.records.environment import Machine, Prices
from pytest_distbench.records.iteration import Breakdown
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample, metric_key
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, Finding
from pytest_distbench.report.page import Point, charts_of
from pytest_distbench.workloads.tables.collectives import bandwidth, change_by_size
from pytest_distbench.workloads.tables.communication import link_charts
from pytest_distbench.workloads.tables.cost import cost_charts, over_time
from pytest_distbench.workloads.tables.phases import phases_by_rank, phases_by_size
from pytest_distbench.workloads.tables.scaling import scaling_charts


def launch(*measured: Sample, **changes: object) -> LaunchRecord:
    made = LaunchRecord(index=0, outcome="passed", wall_s=1.0, measurements=list(measured))
    return replace(made, **changes)


def on(ranks: int, launch: LaunchRecord, **params: object) -> CaseResult:
    made = result(launches=[launch])
    conditions = Conditions(world_size=ranks, backend="gloo", launcher="warm")
    case = replace(made.case, id=f"ws{ranks}", conditions=conditions, params=params)
    return replace(made, case=case)


def trained(workers: int, step_s: float, communication: str = "on") -> CaseResult:
    facts = {"loop": "step", "communication": communication}
    measured = [
        Sample(name="samples_per_step", unit="", better="exact", value=workers * 8),
        Sample(name="step", unit="s", better="lower", value=step_s),
        Sample(name="samples_per_second", unit="samples/s", better="info", value=workers * 8 / step_s, facts=facts),
    ]
    made = on(workers, launch(*measured), communication=communication)
    return replace(made, case=replace(made.case, id="", run=communication))


def with_phases(ranks: int, *names: str) -> CaseResult:
    parts = [Breakdown(path=[name], times_s=[1.0] * ranks) for name in names]
    return on(ranks, launch(breakdowns={"step": Breakdown(times_s=[4.0] * ranks, parts=parts)}))


def to_accuracy(ranks: int, steps: int, step_s: float, *, ends: bool = True) -> CaseResult:
    """A training that reaches 0.9 in its last step, with two evaluations and a rate that rises."""
    half = steps // 2
    measured = [
        Sample(name="steps_to_accuracy", unit="steps", better="steps", value=steps, identity={"target": 0.9}),
        Sample(name="time_to_accuracy", unit="s", better="lower", value=steps * step_s),
        Sample(name="step_time", unit="s", better="lower", value=step_s),
        series("evaluated_accuracy", 0.5, 0.95, facts={"every": half}),
        series("loss", *(1 / (i + 1) for i in range(steps))),
        series("learning_rate", *(0.1 * i for i in range(steps))),
        *([series("evaluation_ends", half * step_s, 2 * half * step_s, facts={"every": half})] if ends else []),
    ]
    return on(ranks, launch(*measured, wall_s=9.0))


def series(name: str, *values: float, **changes: object) -> Sample:
    made = Sample(name=name, unit="", better="info", value=values[-1], values=list(values))
    return replace(made, **changes)


def test_a_sweep_has_its_charts_in_the_order_of_the_table() -> None:
    charts, problems = charts_of(result(point(1024), point(4096)), {})

    assert [chart["title"] for chart in charts] == ["Bus bandwidth by message size", "Time as % of the baseline"]
    assert problems == []


def test_a_sweep_is_drawn_with_its_baseline() -> None:
    [chart] = bandwidth(result(point(1024), point(4096)))
    assert chart["type"] == "lines"
    assert (chart["x"]["scale"], chart["y"]["unit"]) == ("log2", "B/s")
    here, before = chart["series"]
    found = here["points"]
    assert found == [(1024, pytest.approx(1024 / 0.03 * 1.5)), (4096, pytest.approx(4096 / 0.03 * 1.5, rel=1e-3))]
    assert (before["name"], before["look"]) == ("baseline", "reference")
    assert before["points"][0][1] == pytest.approx(1024 / 0.02 * 1.5)

    assert not list(bandwidth(result(point(1024))))
    assert not list(change_by_size(result(point(1024))))

    [chart] = change_by_size(result(point(1024), point(4096)))
    assert chart["type"] == "lines"
    assert chart["series"][0]["points"] == [(1024, 1.5), (4096, 1.5)]
    assert chart["allowed"] == [(1024, 0.9091, 1.1), (4096, 0.9091, 1.1)]


def test_the_phases_of_a_step_add_up_rank_by_rank() -> None:
    parts = [Breakdown(path=["forward"], times_s=[1.0, 2.0]), Breakdown(path=["forward", "norm"], times_s=[0.5, 0.5])]
    broken_down = launch(breakdowns={"step": Breakdown(times_s=[3.0, 3.0], parts=parts)})
    [chart] = phases_by_rank(result(launches=[broken_down]))

    assert chart["type"] == "bars"
    assert chart["parts"] == ["forward", "unaccounted"]
    assert chart["rows"] == [("rank 0", [1.0, 2.0]), ("rank 1", [2.0, 1.0])]


def test_links_are_a_matrix_with_holes_where_none_was_measured() -> None:
    at = {"from": 0, "to": 1}
    link = Finding(
        metric=metric_key("latency", at), code="within-threshold", unit="s", better="lower", current=1e-4, at=at
    )
    [chart] = link_charts(result(link))

    assert chart["type"] == "heat"
    assert chart["cells"] == [[None, 1e-4], [None, None]]
    assert not list(link_charts(result()))


def test_speed_up_is_drawn_with_the_ideal_and_efficiency_is_a_share() -> None:
    speedup, efficiency = scaling_charts([trained(1, 1.0, "off"), trained(1, 1.0), trained(2, 1.25), trained(4, 2.0)])

    assert speedup["type"] == "lines"
    assert efficiency["type"] == "lines"
    assert [s["name"] for s in speedup["series"]] == ["test_a[]", "ideal"]
    assert speedup["series"][0]["points"] == [(1, 1.0), (2, 1.6), (4, 2.0)]
    assert speedup["series"][1]["points"] == [(1, 1), (2, 2), (4, 4)]
    assert efficiency["series"][0]["points"] == [(1, 1.0), (2, 0.8), (4, 0.5)]
    assert efficiency["y"]["unit"] == "%"


def test_phases_of_a_test_stand_below_each_other_by_world_size() -> None:
    [chart] = phases_by_size([with_phases(4, "forward", "send"), with_phases(1, "forward")])

    assert chart["type"] == "bars"
    assert chart["parts"] == ["forward", "send", "unaccounted"]
    assert chart["rows"] == [("1 rank", [1.0, 0.0, 3.0]), ("4 ranks", [1.0, 1.0, 2.0])]
    assert not list(phases_by_size([with_phases(2, "forward")]))


def test_trainings_of_all_sizes_stand_in_one_chart() -> None:
    charts = {chart["title"]: chart for chart in cost_charts([to_accuracy(1, 8, 1.0), to_accuracy(2, 4, 0.5)])}
    accuracy, loss = charts["accuracy by time: test_a"], charts["loss by time: test_a"]
    assert accuracy["type"] == "lines"
    assert loss["type"] == "lines"
    found = [(s["name"], s["points"]) for s in accuracy["series"]]
    assert found == [("1 rank", [(4.0, 0.5), (8.0, 0.95)]), ("2 ranks", [(1.0, 0.5), (2.0, 0.95)])]
    assert (accuracy["target"], loss.get("target")) == (0.9, None)
    assert [x for x, _ in loss["series"][1]["points"]] == [0.5, 1.0, 1.5, 2.0]
    assert "learning_rate by time: test_a" in charts

    charts = {chart["title"]: chart for chart in cost_charts([to_accuracy(1, 8, 1.0), to_accuracy(2, 4, 0.8)])}
    speedup = charts["Speed-up to accuracy 0.9: test_a"]
    assert speedup["type"] == "lines"
    assert {s["name"]: s["points"][-1] for s in speedup["series"]} == {
        "speed-up": (2, 2.5),
        "fewer steps (statistical)": (2, 2.0),
        "faster steps (hardware)": (2, 1.25),
        "ideal": (2, 2.0),
    }


def test_cost_is_ranks_times_time_or_money_where_prices_are_known() -> None:
    [chart] = cost_charts([trained(1, 1.0), trained(4, 2.0)])
    assert chart["type"] == "lines"
    assert chart["series"][0]["labels"] == ["1 rank", "4 ranks"]
    assert [y for _, y in chart["series"][0]["points"]] == [1.0, 2.0]
    assert chart["series"][0]["points"][1][0] == pytest.approx(2 * chart["series"][0]["points"][0][0])
    assert not list(cost_charts([trained(1, 1.0)]))

    machine = Machine(platforms=["cpu-*"], ranks_per_node=1, regular=3600.0, preemptible=360.0)
    prices = Prices(currency="USD", date=date(2020, 10, 5), source="a page", listed={"n1": machine})
    [chart] = cost_charts([trained(1, 1.0), trained(4, 2.0)], prices)
    assert chart["type"] == "lines"
    assert (chart["x"]["name"], chart["x"]["unit"]) == ("cost", "USD")
    priced, cheaper = chart["series"]
    assert [s["name"] for s in chart["series"]] == ["million samples, regular", "million samples, preemptible"]
    assert priced["points"][1][0] == pytest.approx(2 * priced["points"][0][0])
    assert cheaper["points"][0][0] == pytest.approx(priced["points"][0][0] / 10)

    other = [replace(made, case=replace(made.case, test="a.py::test_b")) for made in (trained(1, 1.0), trained(2, 1.0))]
    charts = list(cost_charts([trained(1, 1.0), trained(2, 2.0), *other]))
    found = [chart["title"] for chart in charts]
    assert found == [f"Speed-up and its cost: {name}[on]" for name in ("test_a", "test_b")]


def ends_of(*values: float, seed: int = 0) -> Sample:
    return series("evaluation_ends", *values, facts={"every": 2}, at={"seed": seed})


@pytest.mark.parametrize(
    ("ends", "times"),
    [
        ([ends_of(2.0, 6.0)], [1.0, 2.0, 4.0, 6.0, 8.0]),
        ([ends_of(4.0)], [2.0, 4.0, 6.0, 8.0, 10.0]),
        ([ends_of(1.0, 2.0), ends_of(3.0, 6.0, seed=1)], [1.0, 2.0, 3.0, 4.0, 5.0]),
        ([ends_of(9.0, 10.0), ends_of(1.0, 2.0, 3.0, seed=1)], [2.5, 5.0, 5.5, 6.0, 6.5]),
        ([Sample(name="step_time", unit="s", better="lower", value=0.5)], [0.5, 1.0, 1.5, 2.0, 2.5]),
        ([], []),
    ],
)
def test_a_step_was_taken_between_the_evaluations_about_it(ends: list[Sample], times: list[float]) -> None:
    """The line of the first two or the last two goes on; of several seeds the median counts, of the slow ones too
    that end early; else the median step."""
    steps: list[Point] = [(float(step), 1.0) for step in range(1, 6)]

    assert [x for x, _ in over_time(on(2, launch(*ends)), steps)] == times
