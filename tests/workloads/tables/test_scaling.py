"""The table of scaling tests, from the numbers of report 003."""

from __future__ import annotations

import math
from statistics import geometric_mean, stdev

import pytest
from support.results import result

from pytest_distbench.records.iteration import CANDIDATE, BusyCommunication, CaseTrace
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample, Spread
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.workloads.tables.scaling import NEGATIVE, SCALING, scaling_rows


def sized(
    workers: int, *steps_s: float, communication: str = "on", batch: int = 64, call: str = "", **params: object
) -> CaseResult:
    def measured(step_s: float) -> list[Sample]:
        facts = {"loop": "step", "communication": communication}
        rate = workers * batch / step_s
        return [
            Sample(name="samples_per_step", unit="", better="exact", value=workers * batch),
            Sample(name="step", unit="s", better="lower", value=step_s),
            Sample(name="samples_per_second", unit="samples/s", better="info", value=rate, facts=facts),
            Sample(name="samples_per_second_uncertainty", unit="samples/s", better="info", value=0.5),
            Sample(name="samples_per_second_jitter", unit="samples/s", better="info", value=1.5),
        ]

    launches = [
        LaunchRecord(index=i, outcome="passed", wall_s=1.0, measurements=measured(step_s))
        for i, step_s in enumerate(steps_s)
    ]
    made = result(launches=launches)
    conditions = replace(made.case.conditions, world_size=workers)
    given = {"batch": batch, "communication": communication, **params, **({"scaling": call} if call else {})}
    run = f"{call} {communication}".strip()
    return replace(made, case=replace(made.case, run=run, conditions=conditions, params=given))


MOBILENET = [
    sized(1, 64 / 353.6, communication="off"),
    sized(2, 128 / 503),
    sized(4, 256 / 680),
    sized(8, 512 / 648),
    sized(8, (1 - 0.667) * 512 / 648, communication="off"),
]
"""Report 003, CPU cluster, MobileNetV2."""


def test_report_003s_table_comes_of_its_numbers() -> None:
    section = SCALING.table(MOBILENET)
    columns = {heading: i for i, heading in enumerate(section.header)}
    wanted = ["Workers", "communication", "Speed (samples/s)", "Speedup Ratio", "gain per doubling", "note"]

    assert [[row[columns[name]] for name in wanted] for row in section.texts] == [
        ["1 (local)", "-", "353.6", "1.00", "-", ""],
        ["2", "-", "503", "1.42", "-", ""],
        ["4", "-", "680", "1.92", "1.35", ""],
        ["8", "66.7%", "648", "1.83", "0.95", NEGATIVE],
    ]
    assert section.texts[3][columns["computation/communication"]] == "10 : 20.0"
    assert section.texts[3][columns["Scaling efficiency"]] == "23%"


def test_launches_count_by_their_judged_number_and_samples_per_step() -> None:
    # Strong scaling: half the samples in half the time is twice the rate of two workers, and no more
    rows = scaling_rows([sized(1, 1.0, communication="off", batch=64), sized(2, 0.5, batch=32)])
    assert (rows[1].speedup, rows[1].efficiency) == (pytest.approx(2.0), pytest.approx(1.0))

    local, more = sized(1, 1.0, communication="off"), sized(2, 1.0, 3.0, 1.25)
    more.launches.append(LaunchRecord(index=3, outcome="failed", wall_s=1.0))
    rows = scaling_rows([local, more])
    assert rows[1].speedup == pytest.approx(2 / geometric_mean([1.0, 3.0, 1.25]))


def test_communication_below_the_noise_has_an_upper_limit() -> None:
    rows = scaling_rows([sized(2, 1.0), sized(2, 1.1, communication="off")])
    assert (rows[0].exposed, rows[0].communication, rows[0].ratio) == (0.0, (None, "-"), (None, "-"))

    # Two standard errors of the difference: of logarithms, sqrt(2) of those of a side alone
    apart, beside = sized(2, 0.98, 1.02, communication="off"), sized(2, 1.0, 1.0)
    section = SCALING.table([apart, beside])
    place = section.header.index("communication")
    share = geometric_mean([0.98, 1.02])
    noise = 1 - share + share * 2 * stdev([math.log(0.98), math.log(1.02)]) / math.sqrt(2)
    assert section.texts[0][place - 1 : place + 1] == [f"10 : < {10 * noise / (1 - noise):.1f}", f"< {noise:.1%}"]
    row = dict(zip(section.columns, section.rows[0], strict=True))
    assert (row["communication"], row["communication_at_most"]) == (None, pytest.approx(noise))
    [told] = section.footer
    assert told.startswith("communication < N%: below the noise of the two steps that it is computed from")

    section = SCALING.table([sized(2, 0.79, 0.81, communication="off"), sized(2, 1.0, 1.0)])
    assert section.texts[0][section.header.index("communication")] == "20.0%"
    assert section.footer == []

    def iterated(given: CaseResult) -> CaseResult:
        [launch] = given.launches
        summary = Spread(n=48, minimum=0.9, p25=1.0, median=1.04, p95=1.2, p99=1.2, mean=1.1, stdev=0.1)
        measured = [replace(m, spread=summary) if m.name == "step" else m for m in launch.measurements]
        return replace(given, launches=[replace(launch, measurements=measured)])

    [row] = scaling_rows([iterated(sized(2, 1.0, communication="off")), iterated(sized(2, 1.0))])
    assert row.exposed_at_most == pytest.approx(2 * math.sqrt(2) * 0.01)


def test_tests_models_and_calls_have_tables_of_their_own() -> None:
    one, two = sized(1, 1.0, communication="off", model="a"), sized(2, 1.0, model="b")
    assert [row.speedup for row in scaling_rows([one, two])] == [1.0, None]

    one, two = sized(1, 1.0, communication="off", call="weak"), sized(2, 1.0, call="strong")
    assert [row.speedup for row in scaling_rows([one, two])] == [1.0, None]

    assert scaling_rows([result()]) == []


def test_with_a_quota_and_without_are_compared_each_by_itself() -> None:
    def limited(given: CaseResult) -> CaseResult:
        conditions = replace(given.case.conditions, around={"cpus": "0.3"})
        return replace(given, case=replace(given.case, conditions=conditions))

    free = [sized(1, 0.1, communication="off"), sized(2, 0.2)]
    rows = scaling_rows([*free, limited(sized(1, 0.3, communication="off")), limited(sized(2, 0.4))])
    found = [(row.efficiency, row.note) for row in rows]

    assert found == [(1.0, ""), (pytest.approx(0.5), ""), (1.0, "cpus=0.3"), (pytest.approx(0.75), "cpus=0.3")]


def test_busy_communication_is_a_column_after_the_exposed_one_with_a_trace() -> None:
    busy = BusyCommunication(ranks_s=[0.3, 0.5], totals_s={}, iterations=10, iteration_s=0.5)
    trace = CaseTrace(path="a.gz", sides={CANDIDATE: {"step": busy}})
    section = SCALING.table([MOBILENET[0], replace(MOBILENET[1], trace=trace)])
    place = section.header.index("busy communication")

    assert [row[place] for row in section.texts] == ["-", "80.0%"]
    assert section.header[place - 1] == "communication"
    assert "busy communication" not in SCALING.table(MOBILENET).header
