"""The numbers of a run in the formats of other tools.

Elastic jobs are a Chrome trace, for ``chrome://tracing`` and ui.perfetto.dev, with a line per slot. Judged numbers are
medians over launches, with their spread, for dashboards; and named texts for the reports of JUnit, JSON, HTML, Allure:
``distbench.latency[message_bytes=4096]`` is ``33.73 ms, regressed: +60.0 % (threshold +10%), baseline 21.08 ms``.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, BinaryIO

from pytest_distbench.elastic.records import ElasticResult
from pytest_distbench.errors import DistbenchError
from pytest_distbench.judging.case import by_metric
from pytest_distbench.machine.secrets import mask_text
from pytest_distbench.records.environment import SETTINGS
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.run import CaseResult, Finding, RunRecord
from pytest_distbench.report.texts import change, current, escape, quantity, reference, threshold


def write_trace(record: RunRecord, out: BinaryIO) -> None:
    """Write a trace in the Trace Event Format (JSON object form), with a process per launch."""
    events: list[dict[str, Any]] = []
    for result in record.results:
        for launch in result.launches:
            if launch.has_jobs:
                number = 1 + sum(event["ph"] == "M" for event in events)
                name = f"{result.case.title}, launch {launch.index + 1}"
                events.append({"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}})
                events += [{"pid": number, **event} for event in _events_of(launch)]
    if not events:
        raise DistbenchError("the run has no elastic job, and so no timeline: --format trace writes nothing else")
    out.write(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}).encode())


def _events_of(launch: LaunchRecord) -> Iterator[dict[str, Any]]:
    if launch.elastic is not None:
        yield from _events(launch.elastic, since_s=launch.elastic.start_s)
    if launch.pool is None:
        return
    begin_s = min(hold.begin_s for hold in launch.pool.holds)
    for hold in launch.pool.holds:
        span = {"ts": (hold.begin_s - begin_s) * 1e6, "dur": (hold.end_s - hold.begin_s) * 1e6}
        yield {"ph": "X", "name": hold.owner, "tid": hold.slot, **span, "args": {"asked_s": hold.asked_s}}
    for job in launch.pool.jobs:
        if job.elastic is not None and job.started_s is not None:
            yield from _events(job.elastic, since_s=job.started_s - begin_s, name=f"{job.name}: ")


def _events(job: ElasticResult, *, since_s: float, name: str = "") -> Iterator[dict[str, Any]]:
    for worker in job.workers:
        for part, begin, end in worker.spans:
            arguments = {"generation": worker.generation, "rank": worker.rank, "resumed_at": worker.resumed_at}
            span = {"ts": (begin + since_s) * 1e6, "dur": (end - begin) * 1e6}
            yield {"ph": "X", "name": f"{name}{part}", "tid": worker.slot, **span, "args": arguments}
    for membership_change in job.changes:
        for slot in membership_change.slots:
            yield {
                "ph": "i",
                "name": f"{name}{membership_change.kind}",
                "tid": slot,
                "ts": (membership_change.at_s + since_s) * 1e6,
                "s": "p",
            }


_WORDS = {1: "lower", -1: "higher"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A judged metric of a case.

    Attributes:
        values: of all launches that have one, in the unit.
    """

    result: CaseResult
    measurement: Sample
    values: list[float]

    @property
    def case(self) -> str:
        """Its name among all of a repository: ``suites/test_a.py::test_a[ws2.gloo.warm]``."""
        return f"{self.result.case.test}[{self.result.case.key}]"

    @property
    def sign(self) -> int:
        """1: lower is better; -1: higher is; 0: it has to be equal."""
        return METRIC_KINDS[self.measurement.better].sign

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0


def numbers(record: RunRecord) -> Iterator[Number]:
    for result in record.results:
        launches = [launch for launch in result.launches if launch.outcome == "passed"]
        for found in by_metric(launches).values():
            values = [float(m.value) for m in found if m.value is not None]
            if values and found[0].is_judged and METRIC_KINDS[found[0].better].shape != "series":
                yield Number(result=result, measurement=found[0], values=values)


def write_github_action_benchmark(better: str) -> Callable[[RunRecord, BinaryIO], None]:
    """A writer for ``customSmallerIsBetter`` or ``customBiggerIsBetter`` of benchmark-action/github-action-benchmark.

    Its file has one direction, and may not be empty.
    """
    sign = {"smaller": 1, "bigger": -1}[better]

    def write(record: RunRecord, out: BinaryIO) -> None:
        rows = [
            {
                "name": f"{number.case} {number.measurement.key}",
                "unit": number.measurement.unit or "1",
                "value": number.median,
                "range": f"± {number.spread:.3g}",
                "extra": f"{len(number.values)} launches on {number.result.environment.platform}",
            }
            for number in numbers(record)
            if number.sign == sign
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
    _write_json([_pytorch_record(record, number) for number in numbers(record)], out)


def _pytorch_record(record: RunRecord, number: Number) -> dict[str, Any]:
    case, environment = number.result.case, number.result.environment
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
        "runners": _runners(number.result),
        "model": {
            "name": number.case,
            "type": case.conditions.kind,
            "backend": case.conditions.backend,
            "origins": [case.test.partition("::")[0]],
        },
        "dependencies": {name: {"version": version} for name, version in versions.items()},
        "metric": {
            "name": number.measurement.key,
            "benchmark_values": number.values,
            "extra_info": {"unit": number.measurement.unit, "better": number.measurement.better},
        },
    }


def _runners(result: CaseResult) -> list[dict[str, Any]]:
    """The hosts that its ranks lived on: several of them mark a distributed benchmark."""
    environment = result.environment
    ranks = Counter(result.launches[-1].hosts or ["host0"] * result.case.world_size)
    if result.case.device == "cuda":
        found = [{"name": name, "gpu_info": environment.device, "gpu_count": count} for name, count in ranks.items()]
    else:
        found = [{"name": name, "cpu_info": environment.device, "cpu_count": environment.cores} for name in ranks]
    return [{"type": environment.platform, **runner} for runner in found]


def _write_json(content: object, out: BinaryIO) -> None:
    out.write(json.dumps(content, indent=1).encode() + b"\n")


PREFIX = "distbench."
MOST = 60
"""Of one test. Viewers show them all in one list: of a long sweep what did not stay the same comes before the rest."""

_LONGEST_NAME = 150
_LONGEST_TEXT = 250


def number_properties(cases: Sequence[CaseResult]) -> list[tuple[str, str]]:
    """Name and text of every number of the cases of a test, as many as fit, without secrets."""
    found = [(rank, _property(_name_of(case, metric), text)) for case in cases for rank, metric, text in _numbers(case)]
    found += [(0, _property(_name_of(c, "advisory"), c.headline)) for c in cases if c.outcome == "advisory"]
    if len(found) <= MOST:
        return [text for _, text in found]
    kept = sorted(sorted(range(len(found)), key=lambda i: found[i][0])[: MOST - 1])
    left_out = f"{len(found) - len(kept)} numbers are left out; --distbench-json FILE has all"
    return [*(found[i][1] for i in kept), (f"{PREFIX}more", left_out)]


def _numbers(case: CaseResult) -> Iterator[tuple[int, str, str]]:
    """How much each number matters (0: most), its metric, and its text."""
    for verdict in case.verdicts:
        rank = (
            2
            if not verdict.is_judged
            else 1
            if verdict.kind in ("unchanged", "new") and verdict.code != "numerics"
            else 0
        )
        yield rank, verdict.metric, _text(case, verdict)
    if not case.verdicts and case.launches[-1].outcome == "passed":
        values: dict[tuple[str, str], list[float]] = {}
        for measurement in (m for launch in case.launches for m in launch.measurements if m.value is not None):
            values.setdefault((measurement.key, measurement.unit), []).append(measurement.value or 0.0)
        for (metric, unit), of_launches in values.items():
            yield 2, metric, quantity(median(of_launches), unit)


def _text(case: CaseResult, verdict: Finding) -> str:
    value = "" if verdict.current is None else current(verdict)
    if not verdict.is_judged:
        return value or "no value"
    answer = "no baseline" if verdict.kind == "new" else verdict.kind
    moved = change(verdict) if change(verdict) != verdict.kind else ""
    most = threshold(verdict)
    allowed = {"": "", "exact": "(exact)"}.get(most, f"(threshold {most})")
    told = " ".join(filter(None, [moved, allowed])) or verdict.reason
    compared = f"baseline {reference(verdict)}" if verdict.baseline is not None else ""
    stored = f"{case.update} baseline" if case.is_written else ""
    return ", ".join(filter(None, [value, f"{answer}: {told}" if told else answer, compared, stored]))


def _name_of(case: CaseResult, metric: str) -> str:
    """The metric, after the name of its run if that has one that says more."""
    run = case.case.label
    return metric if run in ("", metric) else f"{run}.{metric}"


def _property(name: str, text: str) -> tuple[str, str]:
    return f"{PREFIX}{_bounded(name, _LONGEST_NAME)}", _bounded(text, _LONGEST_TEXT)


def _bounded(text: str, most: int) -> str:
    text = escape(mask_text(text))
    return text if len(text) <= most else f"{text[: most - 3]}..."
