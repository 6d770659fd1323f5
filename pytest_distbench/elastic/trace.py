"""Elastic jobs as a Chrome trace, for ``chrome://tracing`` and ui.perfetto.dev, with a line per slot."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from pytest_distbench.elastic.records import ElasticResult
from pytest_distbench.errors import DistbenchError
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.run import RunRecord
from pytest_distbench.report.formats import Format


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


TRACE = Format(
    write=lambda record, _sections, out: write_trace(record, out),
    is_whole=True,
    opens_in="chrome://tracing or ui.perfetto.dev",
)
