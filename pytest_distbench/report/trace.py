"""The timelines of elastic jobs as a Chrome trace: for ``chrome://tracing`` and ui.perfetto.dev, a line per slot."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_distbench.records.elastic import ElasticResult, WorkerResult
from pytest_distbench.records.run import CaseResult


def chrome_trace(results: Sequence[CaseResult]) -> str:
    """A trace in the Trace Event Format (JSON object form), with a process per launch; empty of runs without a job."""
    events: list[dict[str, Any]] = []
    for result in results:
        for launch in result.launches:
            if launch.elastic is not None:
                number = 1 + sum(event["ph"] == "M" for event in events)
                name = f"{result.case.title}, launch {launch.index + 1}"
                events.append({"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}})
                events += [{"pid": number, **event} for event in _events(launch.elastic)]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _events(job: ElasticResult) -> Iterator[dict[str, Any]]:
    for worker in job.workers:
        for name, begin, end in _spans(worker):
            if begin is not None and end is not None:
                arguments = {"generation": worker.generation, "rank": worker.rank, "resumed_at": worker.resumed_at}
                span = {"ts": _us(begin, job), "dur": max(0.0, end - begin) * 1e6}
                yield {"ph": "X", "name": name, "tid": worker.slot, **span, "args": arguments}
    for change in job.changes:
        for slot in change.slots:
            yield {"ph": "i", "name": change.kind, "tid": slot, "ts": _us(change.at_s, job), "s": "p"}


def _spans(worker: WorkerResult) -> Iterator[tuple[str, float | None, float | None]]:
    yield "import", worker.process_s, worker.imported_s
    yield "group init", worker.imported_s, worker.joined_s
    if worker.loaded_s is None:  # of a script, or it did not come so far
        yield "to the first step", worker.joined_s, worker.first_step_s
    else:
        yield "build and load", worker.joined_s, worker.loaded_s
        yield "first step", worker.loaded_s, worker.first_step_s
    yield f"train on {worker.world_size}", worker.first_step_s, worker.last_step_s


def _us(moment_s: float, job: ElasticResult) -> float:
    """Microseconds since the agents were started: a trace has no negative times."""
    return (moment_s + job.start_s) * 1e6
