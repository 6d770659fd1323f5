"""The tables of charts: of one case, and of one metric over many runs."""

from __future__ import annotations

import pytest
from support.fingerprints import BARRIER, MIB, reduce
from support.fingerprints import of as of_collectives
from support.metrics import baseline_of
from support.results import PAIRED, STORED, result

from pytest_distbench.records.environment import GpuReport
from pytest_distbench.records.iteration import Fingerprint
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.places import CasePlaces, PlaceRow
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.page import (
    MOST_POINTS,
    OF_CASE,
    charts_of,
    communication,
    curves,
    curves_of,
    epochs,
    grid,
    median_curve,
    places,
    points,
    short,
    target_of,
    unit_of,
    utilisation,
)


def test_a_chart_that_cannot_be_made_is_reported_and_the_others_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OF_CASE, "broken", lambda given: 1 / 0)
    monkeypatch.setitem(OF_CASE, "whole", lambda given: [grid("t", [], [], right=[])])
    charts, problems = charts_of(result(), {})

    assert [chart["title"] for chart in charts if chart["type"] == "grid"] == ["t"]
    assert problems == ["the chart 'broken' cannot be made: ZeroDivisionError: division by zero"]


def test_a_point_without_a_value_is_left_out_and_others_have_four_digits() -> None:
    assert points([(1, 0.123456), (2, None), (3, 0.0)]) == [(1.0, 0.1235), (3.0, 0.0)]
    assert short(123456) == 123500.0


def series(name: str, *values: float, every: int = 1, seed: int = 0, unit: str = "") -> Sample:
    facts = {"every": every} if every > 1 else {}
    at = {"seed": seed}
    return Sample(name=name, unit=unit, better="info", value=values[-1], values=list(values), at=at, facts=facts)


def of(*measured: Sample) -> CaseResult:
    return result(launches=[LaunchRecord(index=0, outcome="passed", wall_s=1.0, measurements=list(measured))])


def test_what_was_evaluated_stands_at_its_steps_or_epochs() -> None:
    found = curves_of(of(series("evaluation_ends", 1.0, 2.0), series("learning_rate", 0.1, 0.2)).launches)
    assert list(found) == ["learning_rate"]

    # Their median would be neither
    evaluated = series("evaluated_loss", 0.4, 0.3, every=2)
    found = curves_of(of(series("loss", 0.9, 0.8, 0.7, 0.6), evaluated, series("accuracy", 0.5, 0.6)).launches)
    assert found["loss"] == [("seed 0", [(2, 0.4), (4, 0.3)])]
    assert list(found) == ["loss", "accuracy"]

    bleu = Sample(name="bleu", unit="", better="info", value=20.0, at={"epoch": 1})
    measured = [bleu, replace(bleu, value=10.0, at={"epoch": 0})]
    [chart] = epochs(result(launches=[launch(*measured)]))
    assert chart["type"] == "lines"
    assert chart["series"][0]["points"] == [(0, 10.0), (1, 20.0)]

    goal = Sample(name="steps_to_accuracy", unit="", better="steps", value=10, identity={"target": 0.9})
    evaluated = replace(curve("evaluated_accuracy", 0.5, 0.95), facts={"every": 5})
    [chart] = curves(result(launches=[launch(evaluated, goal)]))
    assert chart["type"] == "lines"
    assert (chart["title"], chart["target"]) == ("accuracy by step", 0.9)
    assert chart["series"][0]["points"] == [(5, 0.5), (10, 0.95)]

    assert median_curve([[(1, 3.0), (2, 1.0)], [(1, 5.0)], [(1, 4.0), (2, 2.0)]]) == [(1, 4.0), (2, 1.5)]


def launch(*measured: Sample, **changes: object) -> LaunchRecord:
    return replace(LaunchRecord(index=0, outcome="passed", wall_s=1.0, measurements=list(measured)), **changes)


def curve(name: str, *values: float, seed: int = 0, better: str = "info") -> Sample:
    return Sample(name=name, unit="", better=better, value=values[-1], values=list(values), at={"seed": seed})


def test_a_curve_has_its_unit_its_target_and_its_baseline() -> None:
    measured = [curve("loss", 3.0, 1.0, seed=0), curve("loss", 2.0, 1.0, seed=1), curve("loss", 4.0, 2.0, seed=2)]
    [chart] = curves(result(launches=[launch(*measured)]))
    assert chart["type"] == "lines"
    looks = [("seed 0", "thin"), ("seed 1", "thin"), ("seed 2", "thin"), ("median", "")]
    assert [(s["name"], s.get("look", "")) for s in chart["series"]] == looks
    assert chart["series"][-1]["points"] == [(1, 3.0), (2, 1.0)]

    goal = Sample(name="steps_to_loss", unit="", better="steps", value=2, identity={"target": 1.5})
    reference = replace(PAIRED, launches=[launch(curve("loss", 5.0, 4.0))])
    [by_step] = curves(result(launches=[launch(curve("loss", 2.0, 1.0), goal)], reference=reference))
    assert by_step["type"] == "lines"
    assert [s.get("look", "") for s in by_step["series"]] == ["", "reference"]
    assert by_step["target"] == 1.5

    waits = replace(curve("waited", 2.0, 1.0), unit="s")
    [chart] = curves(result(launches=[launch(waits, replace(waits, name="phase/step/forward"))]))
    assert chart["type"] == "lines"
    assert (chart["title"], chart["y"]["unit"]) == ("waited by step", "s")

    [chart] = curves(result(launches=[launch(curve("loss", *map(float, range(100_000))))]))
    assert chart["type"] == "lines"
    assert len(chart["series"][0]["points"]) <= MOST_POINTS

    measured = [curve("loss", 3.0, 2.0, 1.0), curve("loss_curve", 3.0, 2.0, better="curve")]
    assert [chart["title"] for chart in curves(result(launches=[launch(*measured)]))] == ["loss by step"]
    [judged] = [m for m in measured if m.better == "curve"]
    golden = baseline_of([1.5], "curve", "", values=[3.0, 1.5])
    before = replace(STORED, metrics={judged.key: golden})
    for chart, title in zip(
        curves(result(launches=[launch(*measured)], reference=before)),
        ["loss by step", "loss_curve by step"],
        strict=True,
    ):
        assert chart["type"] == "lines"
        assert chart["title"] == title
        assert (chart["series"][-1]["name"], chart["series"][-1]["look"]) == ("baseline", "reference")
        assert chart["series"][-1]["points"] == [(1, 3.0), (2, 1.5)]

    goal = Sample(name="steps_to_loss", unit="steps", better="steps", value=2, identity={"target": 0.2828})
    results = [of(series("waited", 1.0, 2.0, unit="s"), goal)]
    assert (unit_of(results, "waited"), unit_of(results, "loss")) == ("s", "")
    assert (target_of(results, "loss"), target_of(results, "waited")) == (0.2828, None)


def test_communication_that_differs_is_a_table_with_the_baseline() -> None:
    before = of_collectives(reduce(MIB, 2), BARRIER)
    now = of_collectives(reduce(MIB, 4), BARRIER, reduce(8, dtype="int64"))
    sent = launch(fingerprints={"step": now, "other": before})
    reference = replace(STORED, fingerprints={"step": before, "other": before})
    [table] = communication(result(launches=[sent], reference=reference))
    assert table["type"] == "grid"
    assert table["title"] == "Communication in an iteration of step"
    assert table["rows"] == [
        ["*", "all_reduce", "2", "4", "1 MiB", "float32"],
        ["", "barrier", "1", "1", "", ""],
        ["*", "all_reduce", "-", "1", "8 B", "int64"],
        ["*", "sent per rank", "2 MiB", "4 MiB", "", ""],
    ]
    assert table["changed"] == [True, False, True, True]

    ranks = Fingerprint(collectives={"0": [reduce(MIB, 2)], "1-3": [reduce(MIB)]})
    before = of_collectives(reduce(MIB))
    known, made = replace(STORED, fingerprints={"step": before}), launch(fingerprints={"step": ranks})
    [table] = communication(result(launches=[made], reference=known))
    assert table["type"] == "grid"
    assert table["rows"][0] == ["*", "all_reduce", "1", "2", "1 MiB", "float32"]

    missing = Fingerprint(missing="differs between launches of the same code")
    assert not list(communication(result(launches=[launch(fingerprints={"step": missing})], reference=reference)))
    assert not list(communication(result(launches=[sent])))
    told = replace(STORED, fingerprints={"step": of_collectives(reduce(MIB, how="sum"))})
    silent = launch(fingerprints={"step": of_collectives(reduce(MIB))})
    assert not list(communication(result(launches=[silent], reference=told))), "one side has not recorded reductions"
    assert len(list(communication(result(launches=[sent], reference=replace(PAIRED, launches=[silent]))))) == 1


def test_cpus_and_gpus_have_their_course_of_the_first_launches() -> None:
    course = [(0.1 * i, 0.5) for i in range(1, 6)]
    gpu = GpuReport(label="GPU 3", uuid="u", looks=5, course=[(x, 0.83) for x, _ in course])
    seen = [launch(index=i, cpu_course=course, gpu_reports=[gpu]) for i in range(4)]
    [chart] = utilisation(result(launches=seen))

    assert chart["type"] == "lines"
    assert [s["name"] for s in chart["series"]][:2] == ["CPUs, launch 1", "GPU 3, launch 1"]
    assert len(chart["series"]) == 6
    assert chart["y"]["unit"] == "%"
    assert chart["series"][1]["points"][0] == (0.1, 0.83)
    assert not list(utilisation(result(launches=[launch(cpu_course=course[:2])])))


def test_a_place_has_a_bar_for_each_side_and_says_what_explains_it() -> None:
    row = PlaceRow(
        place=("layers.py", 9, "norm"), what="aten::mm", calls=(12, 24), amounts=(0.0031, 0.00623), share=0.92,
        changed_at=("train.py", 31),
    )  # fmt: skip
    late = replace(row, what="Python", calls=(0, 0), share=0.08, rank=1, changed_at=("", 0))
    [chart] = places(result(places=CasePlaces(metric="step", rows=[row, late], sentence="92 % of the added 3.4 ms")))

    assert chart["note"] == "92 % of the added 3.4 ms"
    first = "92 % of the change: aten::mm 12 -> 24 calls, changed at train.py:31"
    assert chart["rows"] == [
        ("layers.py:9 in norm", first, 0.0031, 0.00623),
        ("layers.py:9 in norm, in rank 1", "8 % of the change: Python", 0.0031, 0.00623),
    ]
    assert list(places(result())) == []


def test_a_place_that_holds_more_memory_has_bars_of_bytes() -> None:
    row = PlaceRow(place=("layers.py", 9, "norm"), what="aten::mm", calls=(1, 12), amounts=(1000, 2000), share=0.9)
    [chart] = places(result(memory_places=CasePlaces(metric="peak_memory", unit="B", rows=[row], sentence="90 %")))

    assert (chart["title"], chart["unit"], chart["note"]) == ("Where peak_memory is held", "B", "90 %")
    assert chart["rows"] == [("layers.py:9 in norm", "90 % of the change: aten::mm 1 -> 12 tensors", 1000, 2000)]
