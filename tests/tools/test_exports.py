"""The numbers of a run in the formats of other tools."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from support.results import point, result, run, verdict
from support.timelines import JOB, killed

from pytest_distbench.elastic.measures import measure
from pytest_distbench.errors import DistbenchError
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.formats import FORMATS
from pytest_distbench.tools.exports import MOST, number_properties, write_trace


@pytest.fixture
def events() -> list[dict[str, Any]]:
    """Of two launches of a job that lost a node."""
    elastic, _ = measure(JOB, killed().history)
    launches = [LaunchRecord(index=i, outcome="passed", wall_s=20.0, elastic=elastic) for i in (0, 1)]
    out = io.BytesIO()
    write_trace(run(result(), result(launches=launches)), out)
    found: list[dict[str, Any]] = json.loads(out.getvalue())["traceEvents"]
    return found


def test_a_trace_has_a_process_per_launch_and_a_row_per_slot(events: list[dict[str, Any]]) -> None:
    names = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {1: "test_a[ws2], launch 1", 2: "test_a[ws2], launch 2"}

    spans = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"], e["args"]["generation"]) == (1, 0, 1)]
    assert [e["name"] for e in spans] == ["import", "group init", "build and load", "first step", "train on 1"]
    assert [e["ts"] for e in spans] == pytest.approx([16.0e6, 16.3e6, 16.6e6, 16.8e6, 17.0e6])
    assert [e["dur"] for e in spans] == pytest.approx([0.3e6, 0.3e6, 0.2e6, 0.2e6, 2.5e6])

    [change, _] = [event for event in events if event["ph"] == "i"]
    assert (change["name"], change["tid"], change["ts"]) == ("kill", 1, 12.5e6)


CASE = "suites/test_a.py::test_a[ws2.gloo.warm]"
SIZE = {"message_bytes": 4096}


def launch(index: int, *measured: Sample, outcome: str = "passed") -> LaunchRecord:
    return LaunchRecord(index=index, outcome=outcome, wall_s=1.0, measurements=list(measured))  # type: ignore[arg-type]


def latency(value: float | None) -> Sample:
    return Sample(name="latency", unit="s", better="lower", value=value, at=SIZE)


def rate(value: float, name: str = "busbw", unit: str = "B/s") -> Sample:
    return Sample(name=name, unit=unit, better="higher", value=value)


MEASURED = result(
    launches=[
        launch(0, latency(0.02), rate(4e9), Sample(name="loss", unit="", better="info", value=1.0)),
        launch(1, latency(0.04), rate(6e9)),
        launch(2, latency(9.0), outcome="failed"),
        launch(3, latency(None)),
    ]
)


def written(name: str, *results: CaseResult) -> str:
    out = io.BytesIO()
    FORMATS[name].write(run(*results, commit="c0ffee"), {}, out)
    return out.getvalue().decode()


@pytest.mark.parametrize(
    ("better", "metric", "unit", "value", "spread"),
    [
        ("smaller", "latency[message_bytes=4096]", "s", 0.03, "± 0.0141"),
        ("bigger", "busbw", "B/s", 5e9, "± 1.41e+09"),
    ],
)
def test_github_action_benchmark_has_a_file_for_each_direction(
    better: str, metric: str, unit: str, value: float, spread: str
) -> None:
    [row] = json.loads(written(f"github-action-benchmark-{better}", MEASURED))

    assert row == {
        "name": f"{CASE} {metric}",
        "unit": unit,
        "value": pytest.approx(value),
        "range": spread,
        "extra": "2 launches on cpu-x",
    }


def test_pytorchs_database_has_every_launch() -> None:
    first, second = json.loads(written("pytorch-benchmark", MEASURED))

    assert first == {
        "benchmark": {
            "name": "pytest-distbench",
            "mode": "training",
            "dtype": "",
            "extra_info": {"platform": "cpu-x", "world_size": "2", "launcher": "warm", "commit": "c0ffee"},
        },
        "runners": [{"type": "cpu-x", "name": "host0", "cpu_info": "X", "cpu_count": 2}],
        "model": {"name": CASE, "type": "ranks", "backend": "gloo", "origins": ["suites/test_a.py"]},
        "dependencies": {"torch": {"version": "2.14.0"}},
        "metric": {
            "name": "latency[message_bytes=4096]",
            "benchmark_values": [0.02, 0.04],
            "extra_info": {"unit": "s", "better": "lower"},
        },
    }
    assert second["metric"]["benchmark_values"] == [4e9, 6e9]


COLUMNS = {
    "benchmark": {"name", "mode", "dtype", "extra_info"},
    "runners": {"name", "type", "cpu_info", "cpu_count", "gpu_info", "gpu_count", "extra_info"},
    "model": {"name", "type", "backend", "origins", "extra_info"},
    "dependencies": {"repo", "branch", "sha", "version", "extra_info"},
    "metric": {"name", "benchmark_values", "target_value", "extra_info"},
}
"""Those of ``clickhouse_db_schema/oss_ci_benchmark_v3/schema.sql`` that a run can tell: what has none is dropped."""


def test_pytorchs_database_has_a_column_for_all_that_it_is_given_and_a_runner_for_each_host() -> None:
    on_gpus = replace(MEASURED, case=replace(MEASURED.case, device="cuda", params={"dtype": "bfloat16"}))
    of_hosts = [replace(launch, hosts=["host0", "host0", "host1"]) for launch in on_gpus.launches]
    environment = replace(on_gpus.environment, software={"torch": "2.14.0", "deterministic": "true"})
    rows = json.loads(written("pytorch-benchmark", replace(on_gpus, launches=of_hosts, environment=environment)))

    for row in rows:
        assert row.keys() == COLUMNS.keys()
        tuples = [*row["runners"], *row["dependencies"].values(), row["benchmark"], row["model"], row["metric"]]
        names = [*["runners"] * 2, "dependencies", "benchmark", "model", "metric"]
        for name, found in zip(names, tuples, strict=True):
            assert found.keys() <= COLUMNS[name]
            assert all(isinstance(text, str) for text in found.get("extra_info", {}).values())
    assert [(runner["name"], runner["gpu_count"]) for runner in rows[0]["runners"]] == [("host0", 2), ("host1", 1)]
    assert rows[0]["benchmark"]["dtype"] == "bfloat16"


def named(case: CaseResult, name: str) -> CaseResult:
    return replace(case, case=replace(case.case, run=name))


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (verdict("beyond-threshold"), "30 ms, regressed: +50.0 % (threshold +10%), baseline 20 ms"),
        (verdict("within-threshold", ratio=1.0), "20 ms, unchanged: +0.0 % (threshold +10%), baseline 20 ms"),
        (
            verdict("beyond-threshold", better="exact", threshold=0.0, unit="", current=8.0, baseline=7.0),
            "8, regressed: +14.3 % (exact), baseline 7",
        ),
        (verdict("no-baseline", baseline=None, threshold=None), "30 ms, no baseline"),
        (
            verdict("other-workload", baseline=None, threshold=None, reason="another workload"),
            "30 ms, inconclusive: another workload",
        ),
        (
            verdict("communication", current=None, baseline=None, threshold=None, reason="1 all_reduce"),
            "changed: 1 all_reduce",
        ),
        (verdict("no-baseline", better="info", baseline=None), "30 ms"),
    ],
)
def test_a_number_has_its_value_its_verdict_its_limit_and_what_it_was_compared_with(told: Any, text: str) -> None:
    assert number_properties([result(told)]) == [("distbench.step", text)]


def test_exported_names_are_short_and_those_of_baseline_files() -> None:
    cases = [result(point(4096)), named(result(verdict()), "one"), named(result(verdict(metric="gain")), "gain")]
    assert [name for name, _ in number_properties(cases)] == [
        "distbench.latency[message_bytes=4096]",
        "distbench.one.step",
        "distbench.gain",
    ]

    long = verdict("noise", metric="m" * 1000, reason="r" * 1000)
    secret = verdict("noise", metric="a[token=hunter2x]", reason="password=hunter2x \x1b[31m")
    found = number_properties([result(long, secret)])
    assert all(len(name) <= 170 and len(text) <= 250 for name, text in found)
    assert "hunter2x" not in str(found)
    assert "\x1b" not in found[1][1]

    slow = result(launches=[launch(0, latency(0.02))])
    with pytest.raises(DistbenchError, match="this run has no judged number that is better higher"):
        written("github-action-benchmark-bigger", slow)


def test_what_was_only_measured_is_shown_as_the_median_of_its_launches() -> None:
    launches = [
        LaunchRecord(
            index=i,
            outcome="passed",
            wall_s=1.0,
            measurements=[Sample(name="step", unit="s", better="lower", value=value)],
        )
        for i, value in enumerate([0.02, 0.04, 0.03])
    ]

    assert number_properties([result(launches=launches)]) == [("distbench.step", "30 ms")]


def test_of_many_numbers_those_that_did_not_stay_are_kept_in_the_order_of_the_sweep() -> None:
    sizes = range(1, 2 * MOST)
    slow = {5, 2 * MOST - 1}
    found = number_properties(
        [result(*[point(n, "beyond-threshold" if n in slow else "within-threshold") for n in sizes])]
    )
    names = [name for name, _ in found]

    assert len(found) == MOST
    assert names[-2] == f"distbench.latency[message_bytes={max(slow)}]"
    assert names[:6] == [f"distbench.latency[message_bytes={n}]" for n in range(1, 7)]
    assert found[-1] == ("distbench.more", f"{MOST} numbers are left out; --distbench-json FILE has all")
