"""What dashboards of others are given: judged numbers, and nothing that their readers refuse."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from support.results import result, run

from pytest_distbench.errors import DistbenchError
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.formats import FORMATS

CASE = "suites/test_a.py::test_a[ws2.gloo.warm]"
SIZE = {"message_bytes": 4096}


def launch(index: int, *measured: Measurement, outcome: str = "passed") -> LaunchRecord:
    return LaunchRecord(index=index, outcome=outcome, wall_s=1.0, measurements=list(measured))  # type: ignore[arg-type]


def latency(value: float | None) -> Measurement:
    return Measurement(name="latency", unit="s", better="lower", value=value, at=SIZE)


def rate(value: float, name: str = "busbw", unit: str = "B/s") -> Measurement:
    return Measurement(name=name, unit=unit, better="higher", value=value)


MEASURED = result(
    launches=[
        launch(0, latency(0.02), rate(4e9), Measurement(name="loss", unit="", better="info", value=1.0)),
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


def test_a_file_that_would_be_empty_is_an_error() -> None:
    slow = result(launches=[launch(0, latency(0.02))])
    with pytest.raises(DistbenchError, match="no judged number is better higher in this run"):
        written("github-action-benchmark-bigger", slow)


def test_bencher_has_where_the_launches_lie() -> None:
    assert json.loads(written("bencher", MEASURED)) == {
        CASE: {
            "latency[message_bytes=4096]": {"value": 0.03, "lower_value": 0.02, "upper_value": 0.04},
            "busbw": {"value": 5e9, "lower_value": 4e9, "upper_value": 6e9},
        }
    }


def test_pytorchs_database_has_every_launch() -> None:
    first, second = json.loads(written("pytorch-benchmark", MEASURED))

    assert first["metric"] == {"name": "latency[message_bytes=4096]", "unit": "s", "benchmark_values": [0.02, 0.04]}
    assert second["metric"]["benchmark_values"] == [4e9, 6e9]
    assert first["benchmark"] == {
        "name": CASE,
        "extra_info": {"platform": "cpu-x", "world_size": "2", "backend": "gloo", "commit": "c0ffee"},
    }
    assert first["model"] == {"name": "test_a", "type": "", "backend": "cpu"}


def test_prometheus_reads_the_metrics_with_hostile_names_too() -> None:
    hostile = result(
        launches=[launch(0, rate(1.0, name='a"b\\\n{} ß', unit="samples/s"), rate(2.0, name="ß", unit=""))]
    )
    found: dict[str, Any] = {
        family.name: family for family in text_string_to_metric_families(written("openmetrics", MEASURED, hostile))
    }

    assert list(found) == ["distbench_latency_seconds", "distbench_busbw_bytes_per_second",
                           "distbench_a_b_samples_per_second", "distbench"]  # fmt: skip
    [sample] = found["distbench_latency_seconds"].samples
    assert sample.value == pytest.approx(0.03)
    assert sample.labels == {
        "test": "suites/test_a.py::test_a", "case": "ws2.gloo.warm", "platform": "cpu-x", "at_message_bytes": "4096",
    }  # fmt: skip
    assert sample.timestamp is None
