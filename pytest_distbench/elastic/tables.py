"""The tables and charts of elastic jobs, of what each change of membership cost them, and of pools and their slots."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, BinaryIO, NamedTuple

from pytest_distbench.elastic.records import (
    PARTS,
    SERVING,
    ChangeResult,
    ElasticJob,
    ElasticResult,
    EpochResult,
    Moment,
    PoolJobResult,
    PoolResult,
    Stretch,
)
from pytest_distbench.errors import DistbenchError
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, RunRecord
from pytest_distbench.report.formats import Format
from pytest_distbench.report.page import Axis, Chart, Lines, Series, Spans, points, short
from pytest_distbench.report.tables.table import (
    LAUNCH,
    TEST,
    Cell,
    Column,
    OfLaunch,
    TableKind,
    number,
    rows_of_launches,
    seconds,
)


def is_fixed(job: ElasticJob) -> bool:
    return not job.plan.changes and job.plan.cycle is None


def setup_name(job: ElasticJob) -> str:
    """Nodes that stay and nodes that come and go: ``4:4 (10 s cycle)``."""
    if job.plan.cycle is not None:
        return f"{job.least}:{job.most - job.least} ({job.plan.cycle.period_s:g} s cycle)"
    return f"{job.start}:0" if is_fixed(job) else f"{job.least}:{job.most - job.least} ({job.plan})"


def jobs_of(results: Sequence[CaseResult]) -> Iterator[OfLaunch[ElasticResult]]:
    """All elastic jobs; one of a pool has its name behind that of its case."""
    for result in results:
        for launch in result.launches:
            if launch.elastic is not None:
                yield OfLaunch(result, launch, launch.elastic)
            for job in launch.pool.jobs if launch.pool is not None else []:
                if job.elastic is not None:
                    part = "run" if result.case.run else "id"
                    case = replace(result.case, **{part: f"{getattr(result.case, part)} {job.name}"})
                    mine = [m for m in launch.measurements if m.at.get("job") == job.name]
                    named = replace(result, case=case)
                    yield OfLaunch(named, replace(launch, measurements=mine), job.elastic)


def _whole_s(job: ElasticResult) -> float:
    return job.training_s + job.end_s


def _last(job: ElasticResult) -> EpochResult | None:
    return job.epochs[-1] if job.epochs else None


def _value(name: str, heading: str) -> Column[OfLaunch[ElasticResult]]:
    def cell(row: OfLaunch[ElasticResult]) -> object:
        return {m.name: m.value for m in row.launch.measurements if not m.at.keys() - {"job"}}.get(name)

    return Column(name, float, heading, cell)


JOBS: TableKind[OfLaunch[ElasticResult]] = TableKind(
    summary="Each launch of an elastic job.",
    rows=lambda results: list(jobs_of(results)),
    columns=[
        Column("setup", str, "Setup (Ondemand:Cycle)", lambda row: setup_name(row.item.job)),
        Column("epochs", int, "Epochs", lambda row: len(row.item.epochs)),
        Column("seconds", float, "Time taken (seconds)", lambda row: number(_whole_s(row.item), ".5f")),
        Column("minutes", float, "Time taken minutes", lambda row: number(_whole_s(row.item) / 60, ".5f")),
        _value("accuracy", "Accuracy"),
        _value("top5", "top5"),
        Column("loss", float, "Loss", lambda row: (last := _last(row.item)) and last.loss),
        _value("goodput", "goodput"),
        _value("lost_fraction", "lost"),
        Column("start_s", float, "Start (seconds)", lambda row: number(row.item.start_s, ".5f")),
        Column(
            "training_accuracy", float, "training accuracy", lambda row: (last := _last(row.item)) and last.accuracy
        ),
        Column("training_top5", float, "training top5", lambda row: (last := _last(row.item)) and last.top5),
        Column("plan", str, "plan", lambda row: str(row.item.job.plan)),
        TEST,
        LAUNCH,
    ],
)


def _kind(change: ChangeResult) -> Cell:
    return Cell(change.kind, f"{change.kind} of slot {', '.join(map(str, change.slots))}")


def _part(part: str) -> Column[OfLaunch[ChangeResult]]:
    return Column(f"{part}_s", float, part.replace("_", " "), lambda row: seconds(row.item.parts.get(part)))


def _moment(when: str, moment_of: Callable[[ChangeResult], Moment | None]) -> list[Column[OfLaunch[ChangeResult]]]:
    """What is shown of the step before a change, or of the one behind it, each alone."""

    def column(name: str, type_: type[int] | type[float]) -> Column[OfLaunch[ChangeResult]]:
        return Column(f"{name}_{when}", type_, f"{name} {when}", lambda row: getattr(moment_of(row.item), name, None))

    return [
        column("step", int),
        column("epoch", int),
        column("loss", float),
        column("accuracy", float),
        column("lr", float),
    ]


EVENTS: TableKind[OfLaunch[ChangeResult]] = TableKind(
    summary="Every change of membership: what it cost.",
    rows=lambda results: [
        OfLaunch(row.result, row.launch, change) for row in jobs_of(results) for change in row.item.changes
    ],
    columns=[
        TEST,
        LAUNCH,
        Column("change", int, "#", lambda row: Cell(row.item.index, str(row.item.index + 1))),
        Column("at_s", float, "at s", lambda row: number(row.item.at_s, ".1f")),
        Column("kind", str, "change", lambda row: _kind(row.item)),
        Column("before", int, "nodes", lambda row: row.item.before),
        Column("after", int, "then", lambda row: row.item.after),
        Column("stall_s", float, "stall", lambda row: seconds(row.item.stall_s)),
        Column("recovery_s", float, "recovery", lambda row: seconds(row.item.recovery_s)),
        *map(_part, PARTS),
        Column("unaccounted_s", float, "unaccounted", lambda row: seconds(row.item.unaccounted_s)),
        Column("steps_redone", int, "steps redone", lambda row: row.item.steps_redone),
        Column("redone_s", float, "redone", lambda row: seconds(row.item.redone_s)),
        Column("rounds", int, "rounds", lambda row: row.item.rounds),
        Column("restarts_used", int, "restarts", lambda row: row.item.restarts_used),
        Column("joiner_ready_s", float, "joiner ready", lambda row: seconds(row.item.joiner_ready_s)),
        Column("slot_free_s", float, "slot free", lambda row: seconds(row.item.slot_free_s)),
        *_moment("before", lambda change: change.before_it),
        *_moment("after", lambda change: change.after_it),
        Column(
            "overlapped",
            bool,
            "",
            lambda row: Cell(row.item.overlapped, "overlapped" if row.item.overlapped else ""),
        ),
    ],
)


_WIDTH = 72
_FREE, _IDLE = ".", "-"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _pools(results: Sequence[CaseResult]) -> Iterator[OfLaunch[PoolResult]]:
    return rows_of_launches(results, lambda launch: launch.pool)


class PoolRow(NamedTuple):
    result: CaseResult
    launch: LaunchRecord
    pool: PoolResult
    job: PoolJobResult

    def since_submission(self, moment_s: float | None) -> float | None:
        return None if moment_s is None else moment_s - self.job.submitted_s


def _pictures(rows: Sequence[PoolRow]) -> Iterator[str]:
    for row in rows:
        if row.job is row.pool.jobs[0]:
            yield from ("", f"{row.result.case.title}, launch {row.launch.index + 1}:", *picture(row.pool))


POOLS: TableKind[PoolRow] = TableKind(
    summary="Every job of a pool: when it was submitted, began and ended.",
    rows=lambda results: [PoolRow(*row, job) for row in _pools(results) for job in row.item.jobs],
    columns=[
        TEST,
        LAUNCH,
        Column("policy", str, "policy", lambda row: _policy(row.pool)),
        Column("job", str, "job", lambda row: row.job.name),
        Column("submitted_s", float, "submitted", lambda row: number(row.job.submitted_s, ".1f")),
        Column("started_s", float, "started", lambda row: number(row.job.started_s, ".1f")),
        Column("ended_s", float, "ended", lambda row: number(row.job.ended_s, ".1f")),
        Column("queue_wait_s", float, "queue wait", lambda row: seconds(row.since_submission(row.job.started_s))),
        Column("jct_s", float, "jct", lambda row: seconds(row.since_submission(row.job.ended_s))),
        Column("workers", str, "workers over time", lambda row: _workers(row.job)),
        Column("makespan_s", float, "makespan", lambda row: seconds(row.pool.makespan_s)),
        Column("idle_gap_s", float, "idle gap", lambda row: seconds(row.pool.idle_gap_s)),
        Column("allocated", float, "allocated", lambda row: number(row.pool.allocated, ".3f")),
        Column("productive", float, "productive", lambda row: number(row.pool.productive, ".3f")),
    ],
    footer=lambda rows: list(_pictures(rows)),
)


def _workers(job: PoolJobResult) -> str:
    return ", ".join(f"{workers} from {since:.1f}" for since, workers in job.workers)


class ServingRow(NamedTuple):
    result: CaseResult
    launch: LaunchRecord
    pool: PoolResult
    stretch: Stretch


def _preemptions(rows: Sequence[ServingRow]) -> Iterator[str]:
    for row in rows:
        for preemption in row.pool.preemptions if row.stretch is row.pool.stretches[0] else ():
            yield (
                f"at {preemption.at_s:.2f} s {preemption.slots} more requested: slots free after "
                f"{seconds(preemption.free_s).text}, serving ready after {seconds(preemption.ready_s).text}"
            )


SERVINGS: TableKind[ServingRow] = TableKind(
    summary="Every period of a pool with serving: who had slots, and how soon.",
    rows=lambda results: [ServingRow(*row, stretch) for row in _pools(results) for stretch in row.item.stretches],
    columns=[
        TEST,
        LAUNCH,
        Column("begin_s", float, "time s", lambda row: _span(row.stretch)),
        Column("end_s", float, None, lambda row: row.stretch.end_s),
        Column("wanted", int, "wanted", lambda row: row.stretch.wanted),
        Column("serving", int, "serving", lambda row: row.stretch.serving),
        Column("training", int, "training", lambda row: row.stretch.training),
        Column("total", int, "total", lambda row: row.stretch.serving + row.stretch.training),
        Column("capacity", int, "capacity", lambda row: row.pool.pool.slots),
    ],
    footer=lambda rows: list(_preemptions(rows)),
)


def _span(stretch: Stretch) -> Cell:
    return Cell(stretch.begin_s, f"{stretch.begin_s:.2f} to {stretch.end_s:.2f}")


def picture(pool: PoolResult) -> list[str]:
    """A line per slot, from the first submission to the end of the last job: who trains in it, or serves."""
    begin = min(job.submitted_s for job in pool.jobs)
    letters = {job.name: letter for job, letter in zip(pool.jobs, _LETTERS, strict=False)} | {SERVING: "s"}
    step_s = pool.makespan_s / _WIDTH
    lines = {slot: [_FREE] * _WIDTH for slot in range(pool.pool.slots)}

    def draw(slot: int, begin_s: float, end_s: float, mark: str) -> None:
        for column in range(_WIDTH):
            if begin_s <= begin + (column + 0.5) * step_s < end_s:
                lines[slot][column] = mark

    for hold in pool.holds:
        draw(hold.slot, hold.begin_s, hold.end_s, _IDLE)
        if hold.ready_s is not None:
            draw(hold.slot, hold.ready_s, hold.end_s, letters[SERVING])
    for job in pool.jobs:
        since = job.started_s or 0.0
        for worker in job.elastic.workers if job.elastic is not None else []:
            if worker.first_step_s is not None and worker.last_step_s is not None:
                draw(worker.slot, worker.first_step_s + since, worker.last_step_s + since, letters[job.name])
    legend = ", ".join(f"{letter}: {name}" for name, letter in letters.items() if name != SERVING or pool.pool.serving)
    shown = [f"slot {slot} {''.join(line)}" for slot, line in lines.items()]
    first, last = f"{begin:.0f} s", f"{begin + pool.makespan_s:.0f} s"
    return [
        *shown,
        f"       {first}{last:>{_WIDTH - len(first)}}",
        f"{legend}; {_IDLE}: owned, without a step; {_FREE}: free",
    ]


def _policy(pool: PoolResult) -> str:
    words: list[str] = [pool.pool.policy]
    words += ["synthetic"] if pool.pool.compute == "synthetic" else []
    words += [f"{pool.pool.slots} slots on {pool.pool.cores} cores"] if pool.pool.cores is not None else []
    return ", ".join(words)


MOST_TIMELINES = 3
"""That are drawn of a case: the table below has them all."""


def elastic_charts(result: CaseResult) -> Iterator[Chart]:
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


def pool_charts(result: CaseResult) -> Iterator[Chart]:
    for launch, found in _drawn_pools(result):
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


def serving_charts(result: CaseResult) -> Iterator[Chart]:
    """The slots of a pool over time: those that the serving wanted and had, and those of the training."""
    for launch, found in _drawn_pools(result):
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


def _drawn_pools(result: CaseResult) -> Iterator[tuple[LaunchRecord, PoolResult]]:
    for launch in result.launches[:MOST_TIMELINES]:
        if launch.pool is not None:
            yield launch, launch.pool


def _of_launch(result: CaseResult, launch: LaunchRecord) -> str:
    return f", launch {launch.index + 1}" if len(result.launches) > 1 else ""


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
