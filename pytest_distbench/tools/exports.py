"""Judged numbers of a run in the formats of dashboards, with the statistic and the launches of its tables."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from pytest_distbench.errors import DistbenchError
from pytest_distbench.records.environment import SETTINGS
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.metric import FINGERPRINT
from pytest_distbench.records.run import CaseResult, Finding, RunRecord
from pytest_distbench.report.formats import of_run
from pytest_distbench.report.verdicts import launches_by_metric, measured, values_of
from pytest_distbench.units import counted

_WORDS = {1: "lower", -1: "higher"}
_CHOICES = ("cpu_capability", "threads")  # parts of ``software`` that are no versions, besides SETTINGS


def _judged(record: RunRecord) -> Iterator[tuple[CaseResult, Finding, list[float], str]]:
    """Yield (case, finding, values of its launches, why dashboards cannot hold it, or "") for each judged metric."""
    for result in record.results:
        samples_of = launches_by_metric(result)
        for number in result.verdicts or measured(x for x in result.launches if x.outcome == "passed"):
            if number.is_judged and number.metric != FINGERPRINT:
                is_series = METRIC_KINDS[number.better].shape == "series"
                why_not = "a series" if is_series else "no value" if number.current is None else ""
                yield result, number, values_of(number, samples_of(number)), why_not


def _left_out(record: RunRecord) -> list[str]:
    return [f"{_name_of(result)} {number.metric} ({why})" for result, number, _, why in _judged(record) if why]


def _name_of(result: CaseResult) -> str:
    """A case's name that is unique in a repository: ``suites/test_a.py::test_a[ws2.gloo.warm]``."""
    return f"{result.case.test}[{result.case.key}]"


def write_github_action_benchmark(better: str) -> Callable[[RunRecord, BinaryIO], None]:
    """Make a writer for ``customSmallerIsBetter`` or ``customBiggerIsBetter`` of github-action-benchmark.

    Its file has one direction, and may not be empty. A number that may neither rise nor fall is in both.
    """
    sign = {"smaller": 1, "bigger": -1}[better]

    def write(record: RunRecord, out: BinaryIO) -> None:
        rows = [
            {
                "name": f"{_name_of(result)} {number.metric}",
                "unit": number.unit or "1",
                "value": number.current,
                "range": f"± {statistics.stdev(values) if len(values) > 1 else 0.0:.3g}",
                "extra": f"{number.statistic}, {counted(len(values), 'launch')} on {result.environment.platform}",
            }
            for result, number, values, why_not in _judged(record)
            if not why_not and _direction(number) in (sign, 0)
        ]
        if not rows:
            raise DistbenchError(
                f"this run has no judged number that is better {_WORDS[sign]}, and the file may not be empty"
            )
        _write_json(rows, out)

    return write


def _direction(number: Finding) -> int:
    """1 if a larger number is worse, -1 if a smaller one is, 0 if both are."""
    kind = METRIC_KINDS[number.better]
    return kind.sign or kind.counts_steps - kind.has_floor


def write_pytorch_benchmark(record: RunRecord, out: BinaryIO) -> None:
    """Write records of PyTorch's benchmark database, as ``upload-benchmark-results`` of pytorch/test-infra takes them.

    Its table, version 3 (``clickhouse_db_schema/oss_ci_benchmark_v3``), has one benchmark by name, whose models are our
    cases; what it has no column for is text in an ``extra_info``. The uploader adds commit, branch and job.
    """
    rows = [
        _pytorch_record(record, result, number, values)
        for result, number, values, why_not in _judged(record)
        if not why_not
    ]
    _write_json(rows, out)


def _pytorch_record(record: RunRecord, result: CaseResult, number: Finding, values: list[float]) -> dict[str, Any]:
    case, environment = result.case, result.environment
    # The hosts that its ranks lived on: several of them mark a distributed benchmark.
    ranks = Counter(result.launches[-1].hosts or ["host0"] * case.world_size)
    hosts: dict[str, dict[str, Any]] = {
        host: {"gpu_info": environment.device, "gpu_count": count}
        if case.device == "cuda"
        else {"cpu_info": environment.device, "cpu_count": environment.cores}
        for host, count in ranks.items()
    }
    choices = {name: value for name, value in environment.software.items() if name in {*SETTINGS, *_CHOICES}}
    versions = {name: value for name, value in environment.software.items() if name not in choices}
    return {
        "benchmark": {
            "name": "pytest-distbench",
            "mode": "training" if _trains(result) else "",
            "dtype": str(case.params.get("dtype", "")),
            "extra_info": {
                "platform": environment.platform,
                "world_size": str(case.world_size),
                "launcher": case.conditions.launcher,
                "commit": record.commit,
                **choices,
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
            "name": number.metric,
            "benchmark_values": [number.current],
            "extra_info": {
                "unit": number.unit,
                "better": number.better,
                "statistic": number.statistic,
                "launches": json.dumps(values),
            },
        },
    }


def _trains(result: CaseResult) -> bool:
    last = result.launches[-1]
    has_steps = any(seen.totals.get("optimizer_steps") for seen in last.fingerprints.values())
    return has_steps or any(METRIC_KINDS[m.better].is_of_training for m in last.measurements)


def _write_json(content: object, out: BinaryIO) -> None:
    out.write(json.dumps(content, indent=1).encode() + b"\n")


SMALLER = of_run(write_github_action_benchmark("smaller"), left_out=_left_out)
BIGGER = of_run(write_github_action_benchmark("bigger"), left_out=_left_out)
PYTORCH = of_run(write_pytorch_benchmark, left_out=_left_out)
