"""The table of phases."""

from __future__ import annotations

import pytest
from support.results import result, verdict

from pytest_distbench.records.iteration import CANDIDATE, Breakdown, BusyCommunication, CaseTrace
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import WALL_TIME, Sample, Spread
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.workloads.tables.phases import PHASES

MS = 1e-3


def part(*path: str, times: list[float], **changes: object) -> Breakdown:
    return Breakdown(path=list(path), times_s=times, **changes)  # type: ignore[arg-type]


def on(*breakdowns: Breakdown | None) -> CaseResult:
    launches = [
        LaunchRecord(index=i, outcome="passed", wall_s=1.0, breakdowns={} if b is None else {"step": b})
        for i, b in enumerate(breakdowns)
    ]
    return result(verdict(), launches=launches)


def texts(made: CaseResult) -> list[list[str]]:
    return [row[2:] for row in PHASES.table([made]).texts]


STEP = Breakdown(
    times_s=[20 * MS, 20 * MS],
    parts=[
        part("forward", times=[4 * MS, 4 * MS]),
        part("backward", times=[13 * MS, 15 * MS]),
        part("backward", "communication", times=[10 * MS, 4 * MS], waits_s=[8 * MS, 1 * MS], late_s=[1 * MS, 9 * MS]),
        part("evaluation", times=[3 * MS, 1 * MS], is_apart=True),
    ],
)


def test_the_parts_and_what_is_unaccounted_are_the_step_also_of_a_script() -> None:
    assert texts(on(STEP)) == [
        ["step", "2", "20 ms", "100.0%", "4.5 ms", "-", "1 (x 1.58)", "10 : 5.4"],
        ["· forward", "2", "4 ms", "20.0%", "-", "-", "0 (x 1.00)", ""],
        ["· backward", "2", "14 ms", "70.0%", "4.5 ms", "-", "1 (x 2.80)", ""],
        ["· · communication", "2", "7 ms", "35.0%", "4.5 ms", "rank 1 by 9 ms", "1 (x 1.50)", ""],
        ["· unaccounted", "2", "2 ms", "10.0%", "-", "-", "0 (x 3.00)", ""],
        ["· evaluation (apart)", "2", "2 ms", "10.0%", "-", "-", "0 (x 3.00)", ""],
    ]

    script = Breakdown(times_s=[4.0], parts=[part("load", "read", times=[0.5]), part("load", times=[1.0])])
    launch = LaunchRecord(index=0, outcome="passed", wall_s=5.0, breakdowns={WALL_TIME: script})
    assert [row[1:5] for row in PHASES.table([result(verdict(), launches=[launch])]).texts] == [
        [WALL_TIME, "script", "2", "4 s"],
        [WALL_TIME, "· load", "2", "1 s"],
        [WALL_TIME, "· · read", "2", "500 ms"],
        [WALL_TIME, "· unaccounted", "2", "3 s"],
    ]

    assert PHASES.table([on(None)]).rows == []

    kernels = Breakdown(times_s=[2 * MS], parts=[part("forward", times=[2 * MS], hosts_s=[0.5 * MS])])
    section = PHASES.table([on(kernels)])
    assert section.header[-2] == "host"
    assert [row[-2] for row in section.texts] == ["-", "500 us", "-"]
    assert "host" not in PHASES.table([on(STEP)]).header


def test_machines_read_the_parent_and_base_units() -> None:
    section = PHASES.table([on(STEP)])
    communication = dict(zip(section.columns, section.rows[3], strict=True))

    assert communication == {
        "test": "suites/test_a.py::test_a[ws2]",
        "case": "",
        "loop": "step",
        "kind": "phase",
        "parent": "backward",
        "phase": "communication",
        "ranks": 2,
        "time_s": pytest.approx(7 * MS),
        "share": pytest.approx(0.35),
        "total_s": None,
        "steps": None,
        "wait_s": pytest.approx(4.5 * MS),
        "latest_rank": 1,
        "late_s": pytest.approx(9 * MS),
        "slowest_rank": 1,
        "slowest_times_others": pytest.approx(1.5),
        "host_s": None,
        "communication_per_compute": None,
        "busy_communication_s": None,
        "profiled_step_s": None,
    }


@pytest.mark.parametrize(
    ("steps", "totals"),
    [
        ([16], ["320 ms", "64 ms", "224 ms", "112 ms", "32 ms", "32 ms"]),
        ([10, 10], ["200 ms", "40 ms", "140 ms", "70 ms", "20 ms", "20 ms"]),
        ([10, 16], None),
        ([], None),
    ],
)
def test_a_task_is_all_the_steps_that_a_launch_timed(steps: list[int], totals: list[str] | None) -> None:
    """All launches timed equally many."""
    made = on(*[STEP] * max(1, len(steps)))
    spread = Spread(n=0, minimum=0, p25=0, median=0, p95=0, p99=0, mean=0, stdev=0)
    launches = [
        replace(
            launch,
            measurements=[Sample(name="step", unit="s", better="lower", value=20 * MS, spread=replace(spread, n=n))],
        )
        for launch, n in zip(made.launches, steps, strict=False)
    ]
    section = PHASES.table([replace(made, launches=launches or made.launches)])
    column = section.header.index("total") if "total" in section.header else None

    assert (None if column is None else [row[column] for row in section.texts]) == totals


def test_phases_are_means_over_seeds_and_launches() -> None:
    made = on(None)
    seeds = {f"step[seed={seed}]": Breakdown(times_s=[time_s], parts=[part("load", times=[4 * MS])])
             for seed, time_s in enumerate((10 * MS, 30 * MS))}  # fmt: skip
    measured = [Sample(name="step", unit="s", better="lower", value=MS, at={"seed": seed}) for seed in range(2)]
    launch = replace(made.launches[0], breakdowns=seeds, measurements=measured)
    section = PHASES.table([replace(made, launches=[launch])])
    assert [row[1:6] for row in section.texts] == [
        ["step", "step", "2", "20 ms", "100.0%"],
        ["step", "· load", "2", "4 ms", "20.0%"],
        ["step", "· unaccounted", "2", "16 ms", "80.0%"],
    ]

    slower = Breakdown(times_s=[40 * MS], parts=[part("load", times=[8 * MS]), part("save", times=[4 * MS])])
    faster = Breakdown(times_s=[20 * MS], parts=[part("load", times=[6 * MS])])
    assert [row[:4] for row in texts(on(faster, None, slower))] == [
        ["step", "2", "30 ms", "100.0%"],
        ["· load", "2", "7 ms", "23.3%"],
        ["· save", "2", "2 ms", "6.7%"],
        ["· unaccounted", "2", "21 ms", "70.0%"],
    ]


def test_communication_inside_communication_counts_once_and_without_any_there_is_no_ratio() -> None:
    inside = [
        part("communication", times=[5 * MS]),
        part("communication", "all_reduce", times=[4 * MS]),
        part("forward", times=[4 * MS]),
        part("forward", "all_reduce", times=[1 * MS]),
    ]

    assert texts(on(Breakdown(times_s=[26 * MS], parts=inside)))[0][-1] == "10 : 3"
    assert texts(on(Breakdown(times_s=[26 * MS], parts=inside[2:3])))[0][-1] == ""


def test_busy_communication_is_a_column_of_a_step_with_a_trace() -> None:
    busy = BusyCommunication(ranks_s=[6 * MS, 8 * MS], totals_s={}, iterations=10, iteration_s=28 * MS)
    trace = CaseTrace(path="a.gz", sides={CANDIDATE: {"step": busy}})
    section = PHASES.table([replace(on(STEP), trace=trace)])
    step = dict(zip(section.columns, section.rows[0], strict=True))

    assert section.header[-1] == "busy communication"
    assert [row[-1] for row in section.texts] == ["7 ms of 28 ms", "", "", "", "", ""]
    assert step["busy_communication_s"] == pytest.approx(7 * MS)
    assert step["profiled_step_s"] == pytest.approx(28 * MS)
    assert "busy communication" not in PHASES.table([on(STEP)]).header
