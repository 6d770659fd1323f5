"""The judged numbers of a run in the formats of dashboards: medians over launches, with their spread."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from pytest_distbench.errors import DistbenchError
from pytest_distbench.judging.terms import by_metric
from pytest_distbench.records.environment import SETTINGS
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.run import CaseResult, RunRecord
from pytest_distbench.report.formats import of_run

_WORDS = {1: "lower", -1: "higher"}


def _numbers(record: RunRecord) -> Iterator[tuple[CaseResult, Sample, list[float]]]:
    for result in record.results:
        launches = [launch for launch in result.launches if launch.outcome == "passed"]
        for found in by_metric(launches).values():
            values = [float(m.value) for m in found if m.value is not None]
            if values and found[0].is_judged and METRIC_KINDS[found[0].better].shape != "series":
                yield result, found[0], values


def _name_of(result: CaseResult) -> str:
    """Its name among all of a repository: ``suites/test_a.py::test_a[ws2.gloo.warm]``."""
    return f"{result.case.test}[{result.case.key}]"


def write_github_action_benchmark(better: str) -> Callable[[RunRecord, BinaryIO], None]:
    """A writer for ``customSmallerIsBetter`` or ``customBiggerIsBetter`` of benchmark-action/github-action-benchmark.

    Its file has one direction, and may not be empty.
    """
    sign = {"smaller": 1, "bigger": -1}[better]

    def write(record: RunRecord, out: BinaryIO) -> None:
        rows = [
            {
                "name": f"{_name_of(result)} {sample.key}",
                "unit": sample.unit or "1",
                "value": statistics.median(values),
                "range": f"± {statistics.stdev(values) if len(values) > 1 else 0.0:.3g}",
                "extra": f"{len(values)} launches on {result.environment.platform}",
            }
            for result, sample, values in _numbers(record)
            if METRIC_KINDS[sample.better].sign == sign
        ]
        if not rows:
            raise DistbenchError(
                f"this run has no judged number that is better {_WORDS[sign]}, and the file may not be empty"
            )
        _write_json(rows, out)

    return write


def write_pytorch_benchmark(record: RunRecord, out: BinaryIO) -> None:
    """Records of PyTorch's benchmark database, as ``upload-benchmark-results`` of pytorch/test-infra takes them.

    Its table, version 3 (``clickhouse_db_schema/oss_ci_benchmark_v3``), has one benchmark by name, whose models are our
    cases; what it has no column for is text in an ``extra_info``. Commit, branch and job are the uploader's.
    """
    _write_json([_pytorch_record(record, *number) for number in _numbers(record)], out)


def _pytorch_record(record: RunRecord, result: CaseResult, sample: Sample, values: list[float]) -> dict[str, Any]:
    case, environment = result.case, result.environment
    # The hosts that its ranks lived on: several of them mark a distributed benchmark.
    ranks = Counter(result.launches[-1].hosts or ["host0"] * case.world_size)
    hosts: dict[str, dict[str, Any]] = {
        host: {"gpu_info": environment.device, "gpu_count": count}
        if case.device == "cuda"
        else {"cpu_info": environment.device, "cpu_count": environment.cores}
        for host, count in ranks.items()
    }
    versions = {name: version for name, version in environment.software.items() if name not in SETTINGS}
    return {
        "benchmark": {
            "name": "pytest-distbench",
            "mode": "training",
            "dtype": str(case.params.get("dtype", "")),
            "extra_info": {
                "platform": environment.platform,
                "world_size": str(case.world_size),
                "launcher": case.conditions.launcher,
                "commit": record.commit,
            },
        },
        "runners": [{"type": environment.platform, "name": host, **found} for host, found in hosts.items()],
        "model": {
            "name": _name_of(result),
            "type": case.conditions.kind,
            "backend": case.conditions.backend,
            "origins": [case.test.partition("::")[0]],
        },
        "dependencies": {name: {"version": version} for name, version in versions.items()},
        "metric": {
            "name": sample.key,
            "benchmark_values": values,
            "extra_info": {"unit": sample.unit, "better": sample.better},
        },
    }


def _write_json(content: object, out: BinaryIO) -> None:
    out.write(json.dumps(content, indent=1).encode() + b"\n")


SMALLER = of_run(write_github_action_benchmark("smaller"))
BIGGER = of_run(write_github_action_benchmark("bigger"))
PYTORCH = of_run(write_pytorch_benchmark)
