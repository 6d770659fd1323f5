"""Charts of elastic jobs and pools: who trained where and when, and what changed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from pytest_distbench.records.elastic import ElasticResult
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.pool import SERVING, PoolResult
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.page.chart import Axis, Chart, Lines, Series, Spans, points, short

MOST_TIMELINES = 3
"""That are drawn of a case: the table below has them all."""


def elastic(result: CaseResult) -> Iterator[Chart]:
    """The slots of an elastic job over time: what each worker did, the stalls, changes and ends of epochs."""
    for launch in result.launches[:MOST_TIMELINES]:
        if launch.elastic is not None:
            yield _timeline(launch.elastic, f"Nodes over time{_of_launch(result, launch)}")


def _timeline(job: ElasticResult, title: str) -> Spans:
    slots = sorted({worker.slot for worker in job.workers})
    spans = [
        (slots.index(worker.slot), short(begin), short(end), what)
        for worker in job.workers
        for what, begin, end in worker.spans
    ]
    rows = [f"slot {slot}" for slot in slots]
    stalls = [
        (len(rows), short(change.at_s), short(change.at_s + change.stall_s), "stall")
        for change in job.changes
        if change.stall_s is not None
    ]
    rows += ["stalls"] if stalls else []
    ends = list(accumulate((epoch.seconds for epoch in job.epochs), initial=0.0))
    spells = [
        (len(rows), short(begin), short(end), f"epoch {epoch.epoch}")
        for epoch, begin, end in zip(job.epochs, ends, ends[1:], strict=False)
    ]
    marks = [
        (short(change.at_s), f"{change.kind} of slot {', '.join(map(str, change.slots))}") for change in job.changes
    ]
    return Spans(title=title, rows=[*rows, "epochs"], spans=[*spans, *stalls, *spells], marks=marks)


def pool(result: CaseResult) -> Iterator[Chart]:
    """Who had which slot of a pool, and when it trained there, or served."""
    for launch, found in _pools(result):
        spans = [(slot, short(begin), short(end), what) for slot, begin, end, what in _uses(found)]
        rows = [f"slot {slot}" for slot in range(found.pool.slots)]
        marks = [(short(job.submitted_s), f"{job.name} asks for slots") for job in found.jobs]
        yield Spans(title=f"Slots over time{_of_launch(result, launch)}", rows=rows, spans=spans, marks=marks)


def _uses(pool: PoolResult) -> Iterator[tuple[int, float, float, str]]:
    """Slot, begin, end and what went on; what lies in another comes after it."""
    for hold in pool.holds:
        yield hold.slot, hold.begin_s, hold.end_s, f"{hold.owner} has it"
        if hold.ready_s is not None:
            yield hold.slot, hold.ready_s, hold.end_s, f"{hold.owner} is ready"
    for job in pool.jobs:
        since_s = job.started_s or 0.0
        for worker in job.elastic.workers if job.elastic is not None else []:
            if worker.first_step_s is not None and worker.last_step_s is not None:
                yield worker.slot, worker.first_step_s + since_s, worker.last_step_s + since_s, f"{job.name} trains"


def serving(result: CaseResult) -> Iterator[Chart]:
    """The slots of a pool over time: those that the serving wanted and had, and those of the training."""
    for launch, found in _pools(result):
        if not found.stretches:
            continue
        over_time = {
            "wanted by the serving": [stretch.wanted for stretch in found.stretches],
            SERVING: [stretch.serving for stretch in found.stretches],
            "training": [stretch.training for stretch in found.stretches],
        }
        begins = [stretch.begin_s for stretch in found.stretches]
        series = [
            Series(name=name, points=points(zip(begins, slots, strict=True)), look="steps")
            for name, slots in over_time.items()
        ]
        title = f"Slots in use{_of_launch(result, launch)}"
        yield Lines(title=title, x=Axis(name="time", unit="s"), y=Axis(name="slots", unit=""), series=series)


def _pools(result: CaseResult) -> Iterator[tuple[LaunchRecord, PoolResult]]:
    for launch in result.launches[:MOST_TIMELINES]:
        if launch.pool is not None:
            yield launch, launch.pool


def _of_launch(result: CaseResult, launch: LaunchRecord) -> str:
    """Which launch it is, where there are several."""
    return f", launch {launch.index + 1}" if len(result.launches) > 1 else ""
