"""The numbers of a run in the formats of other tools."""

from __future__ import annotations

import io
import json
import math

import pytest
from support.results import result, run, verdict

from pytest_distbench.errors import DistbenchError
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import FINGERPRINT, Sample
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.formats import FORMATS

CASE = "suites/test_a.py::test_a[ws2.gloo.warm]"
SIZE = {"message_bytes": 4096}


def launch(index: int, *measured: Sample, outcome: str = "passed") -> LaunchRecord:
    return LaunchRecord(index=index, outcome=outcome, wall_s=1.0, measurements=list(measured))  # type: ignore[arg-type]


def latency(value: float | None) -> Sample:
    return Sample(name="latency", unit="s", better="lower", value=value, at=SIZE)


def rate(value: float, name: str = "busbw", unit: str = "B/s") -> Sample:
    return Sample(name=name, unit=unit, better="higher", value=value)


FIRST = launch(0, latency(0.02), rate(4e9), Sample(name="loss", unit="", better="info", value=1.0))
OTHERS = [launch(1, latency(0.04), rate(6e9)), launch(2, latency(9.0), outcome="failed"), launch(3, latency(None))]
MEASURED = result(launches=[FIRST, *OTHERS])


def written(name: str, *results: CaseResult) -> str:
    out = io.BytesIO()
    FORMATS[name].write(run(*results, commit="c0ffee"), {}, out)
    return out.getvalue().decode()


@pytest.mark.parametrize(
    ("better", "metric", "unit", "value", "spread"),
    [
        ("smaller", "latency[message_bytes=4096]", "s", math.sqrt(0.02 * 0.04), "± 0.0141"),
        ("bigger", "busbw", "B/s", math.sqrt(24) * 1e9, "± 1.41e+09"),
    ],
)
def test_github_action_benchmark_has_a_file_for_each_direction(
    better: str, metric: str, unit: str, value: float, spread: str
) -> None:
    [row] = json.loads(written(f"github-action-benchmark-{better}", MEASURED))

    usual = {"value": pytest.approx(value), "range": spread, "extra": "geometric mean, 2 launches on cpu-x"}
    assert row == {"name": f"{CASE} {metric}", "unit": unit, **usual}


def test_pytorchs_database_has_the_judged_number_and_every_launch() -> None:
    first, second = json.loads(written("pytorch-benchmark", MEASURED))

    ran = {"platform": "cpu-x", "world_size": "2", "launcher": "warm", "commit": "c0ffee"}
    metric = {"name": "latency[message_bytes=4096]", "benchmark_values": [pytest.approx(math.sqrt(0.02 * 0.04))]}
    made_of = {"unit": "s", "better": "lower", "statistic": "geometric mean", "launches": "[0.02, 0.04]"}
    assert first == {
        "benchmark": {"name": "pytest-distbench", "mode": "", "dtype": "", "extra_info": ran},
        "runners": [{"type": "cpu-x", "name": "host0", "cpu_info": "X", "cpu_count": 2}],
        "model": {"name": CASE, "type": "ranks", "backend": "gloo", "origins": ["suites/test_a.py"]},
        "dependencies": {"torch": {"version": "2.14.0"}},
        "metric": metric | {"extra_info": made_of},
    }
    assert second["metric"]["extra_info"]["launches"] == "[4000000000.0, 6000000000.0]"


COLUMNS = {
    "benchmark": {"name", "mode", "dtype", "extra_info"},
    "runners": {"name", "type", "cpu_info", "cpu_count", "gpu_info", "gpu_count", "extra_info"},
    "model": {"name", "type", "backend", "origins", "extra_info"},
    "dependencies": {"repo", "branch", "sha", "version", "extra_info"},
    "metric": {"name", "benchmark_values", "target_value", "extra_info"},
}
"""Columns of ``clickhouse_db_schema/oss_ci_benchmark_v3/schema.sql`` that a run can fill; the others are dropped."""


def test_pytorchs_database_has_a_column_for_all_that_it_is_given_and_a_runner_for_each_host() -> None:
    on_gpus = replace(MEASURED, case=replace(MEASURED.case, device="cuda", params={"dtype": "bfloat16"}))
    of_hosts = [replace(launch, hosts=["host0", "host0", "host1"]) for launch in on_gpus.launches]
    environment = replace(on_gpus.environment, software={"torch": "2.14.0", "deterministic": "true", "threads": "2"})
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
    assert rows[0]["benchmark"]["extra_info"]["threads"] == "2"
    assert rows[0]["dependencies"] == {"torch": {"version": "2.14.0"}}


def test_a_case_that_trains_says_so() -> None:
    loss = Sample(name="final_loss", unit="", better="same", value=0.5)
    [row] = json.loads(written("pytorch-benchmark", result(launches=[launch(0, loss)])))

    assert row["benchmark"]["mode"] == "training"


@pytest.mark.parametrize(
    ("better", "files"),
    [
        ("same", "smaller bigger"),
        ("exact", "smaller bigger"),
        ("memory", "smaller"),
        ("steps", "smaller"),
        ("floor", "bigger"),
    ],
)
def test_a_number_that_is_to_stay_is_in_the_files_of_both_directions(better: str, files: str) -> None:
    other = [latency(0.02), rate(4e9)]  # no file is empty
    measured = result(launches=[launch(0, *other, Sample(name="n", unit="", better=better, value=7.0))])
    found = {
        name: [
            row["value"]
            for row in json.loads(written(f"github-action-benchmark-{name}", measured))
            if "] n" in row["name"]
        ]
        for name in ("smaller", "bigger")
    }

    assert found == {name: [7.0] * (name in files) for name in ("smaller", "bigger")}


def test_exports_have_the_number_of_the_verdict_and_say_which_have_none() -> None:
    told = verdict(statistic="sqrt(min x p25)", current=0.011)
    curve = verdict(metric="loss_curve", better="curve", unit="")
    missing = verdict("not-measured", metric="gone", current=None)
    fingerprint = verdict("communication", metric=FINGERPRINT, current=None)
    case = replace(MEASURED, verdicts=[told, curve, missing, fingerprint])
    made = FORMATS["github-action-benchmark-smaller"]
    [row] = json.loads(written("github-action-benchmark-smaller", case))

    assert (row["value"], row["extra"]) == (0.011, "sqrt(min x p25), 0 launches on cpu-x")
    assert made.left_out(run(case)) == [f"{CASE} loss_curve (a series)", f"{CASE} gone (no value)"]


def test_a_file_of_a_direction_that_no_number_has_is_refused() -> None:
    slow = result(launches=[launch(0, latency(0.02))])
    with pytest.raises(DistbenchError, match="this run has no judged number that is better higher"):
        written("github-action-benchmark-bigger", slow)
