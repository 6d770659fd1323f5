"""The tables and charts of elastic jobs, of the cost of each change of membership, and of pools and their slots."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, BinaryIO

from pytest_distbench.elastic.records import (
    PARTS,
    SERVING,
    ElasticJob,
    JobRun,
    PoolRun,
    Sharing,
    pool_of,
    runs_of,
    spans_of,
    text_of_change,
    unaccounted_s,
)
from pytest_distbench.errors import DistbenchError
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, RunRecord
from pytest_distbench.records.wire import Event
from pytest_distbench.report import page
from pytest_distbench.report.formats import of_run
from pytest_distbench.report.page import Chart, points, short
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


def setup_name(job: ElasticJob) -> str:
    """Numbers of nodes that stay and of nodes that come and go, and how they do: ``4:4 (10 s cycle)``."""
    if job.cycle is not None:
        return f"{job.least}:{job.most - job.least} ({job.cycle.period_s:g} s cycle)"
    return f"{job.start}:0" if not job.plan else f"{job.least}:{job.most - job.least} ({job.planned})"


def jobs_of(results: Sequence[CaseResult]) -> Iterator[OfLaunch[JobRun]]:
    """All elastic jobs; a job of a pool has its name appended to that of its case."""
    for result in results:
        for launch in result.launches:
            for run in runs_of(launch.events):
                if not run.name:
                    yield OfLaunch(result, launch, run)
                    continue
                part = "run" if result.case.run else "id"
                case = replace(result.case, **{part: f"{getattr(result.case, part)} {run.name}"})
                mine = [m for m in launch.measurements if m.at.get("job") == run.name]
                yield OfLaunch(replace(result, case=case), replace(launch, measurements=mine), run)


def _whole_s(run: JobRun) -> float:
    return float(run.summary.training_s + run.summary.end_s)


def _at_end(name: str, fact: str, heading: str) -> Column[OfLaunch[JobRun]]:
    return Column(name, float, heading, lambda row: row.item.epochs[-1].facts[fact] if row.item.epochs else None)


def _value(name: str, heading: str) -> Column[OfLaunch[JobRun]]:
    def cell(row: OfLaunch[JobRun]) -> object:
        return {m.name: m.value for m in row.launch.measurements if not m.at.keys() - {"job"}}.get(name)

    return Column(name, float, heading, cell)


JOBS: TableKind[OfLaunch[JobRun]] = TableKind(
    summary="Each launch of an elastic job.",
    rows=lambda results: list(jobs_of(results)),
    columns=[
        Column("setup", str, "Setup (Ondemand:Cycle)", lambda row: setup_name(row.item.job)),
        Column("epochs", int, "Epochs", lambda row: len(row.item.epochs)),
        Column("seconds", float, "Time taken (seconds)", lambda row: number(_whole_s(row.item), ".5f")),
        Column("minutes", float, "Time taken minutes", lambda row: number(_whole_s(row.item) / 60, ".5f")),
        _value("accuracy", "Accuracy"),
        _value("top5", "top5"),
        _at_end("loss", "loss", "Loss"),
        _value("goodput", "goodput"),
        _value("lost_fraction", "lost"),
        Column("start_s", float, "Start (seconds)", lambda row: number(row.item.summary.start_s, ".5f")),
        _at_end("training_accuracy", "accuracy", "training accuracy"),
        _at_end("training_top5", "top5", "training top5"),
        Column("plan", str, "plan", lambda row: row.item.job.planned),
        TEST,
        LAUNCH,
    ],
)


def _part(part: str) -> Column[OfLaunch[Event]]:
    return Column(f"{part}_s", float, part.replace("_", " "), lambda row: seconds(row.item.parts.get(part)))


def _moment(when: str) -> list[Column[OfLaunch[Event]]]:
    def column(name: str, type_: type[int] | type[float]) -> Column[OfLaunch[Event]]:
        return Column(
            f"{name}_{when}", type_, f"{name} {when}", lambda row: (row.item.facts[f"{when}_it"] or {}).get(name)
        )

    return [
        *(column(name, int) for name in ("step", "epoch")),
        *(column(name, float) for name in ("loss", "accuracy", "lr")),
    ]


EVENTS: TableKind[OfLaunch[Event]] = TableKind(
    summary="Every change of membership: what it cost.",
    rows=lambda results: [
        OfLaunch(row.result, row.launch, change) for row in jobs_of(results) for change in row.item.changes
    ],
    columns=[
        TEST,
        LAUNCH,
        Column("change", int, "#", lambda row: Cell(row.item.index, str(row.item.index + 1))),
        Column("at_s", float, "at s", lambda row: number(row.item.t, ".1f")),
        Column("kind", str, "change", lambda row: Cell(row.item.kind, text_of_change(row.item))),
        Column("before", int, "nodes", lambda row: row.item.before),
        Column("after", int, "then", lambda row: row.item.after),
        Column("stall_s", float, "stall", lambda row: seconds(row.item.stall_s)),
        Column("recovery_s", float, "recovery", lambda row: seconds(row.item.recovery_s)),
        *map(_part, PARTS),
        Column("unaccounted_s", float, "unaccounted", lambda row: seconds(unaccounted_s(row.item))),
        Column("steps_redone", int, "steps redone", lambda row: row.item.steps_redone),
        Column("redone_s", float, "redone", lambda row: seconds(row.item.redone_s)),
        Column("rounds", int, "rounds", lambda row: row.item.rounds),
        Column("restarts_used", int, "restarts", lambda row: row.item.restarts_used),
        Column("joiner_ready_s", float, "joiner ready", lambda row: seconds(row.item.joiner_ready_s)),
        Column("slot_free_s", float, "slot free", lambda row: seconds(row.item.slot_free_s)),
        *_moment("before"),
        *_moment("after"),
        Column(
            "overlapped", bool, "", lambda row: Cell(row.item.overlapped, "overlapped" if row.item.overlapped else "")
        ),
    ],
)


_WIDTH = 72
_FREE, _IDLE = ".", "-"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _pools(results: Sequence[CaseResult]) -> Iterator[OfLaunch[PoolRun]]:
    return rows_of_launches(results, lambda launch: pool_of(launch.events))


JobOfPool = OfLaunch[tuple[PoolRun, JobRun]]
Stretch = OfLaunch[tuple[PoolRun, Event]]


def _since_submission(row: JobOfPool, moment_s: float | None) -> Cell:
    summary = row.item[1].summary
    return seconds(None if moment_s is None else moment_s - summary.submitted_s)


def _pictures(rows: Sequence[JobOfPool]) -> Iterator[str]:
    for result, launch, (pool, job) in rows:
        if job is pool.jobs[0]:
            yield from ("", f"{result.case.title}, launch {launch.index + 1}:", *picture(pool))


def _of_job(name: str, heading: str) -> Column[JobOfPool]:
    return Column(name, float, heading, lambda row: number(row.item[1].summary.facts[name], ".1f"))


POOLS: TableKind[JobOfPool] = TableKind(
    summary="Every job of a pool: when it was submitted, began and ended.",
    rows=lambda results: [OfLaunch(*row[:2], (row.item, job)) for row in _pools(results) for job in row.item.jobs],
    columns=[
        TEST,
        LAUNCH,
        Column("policy", str, "policy", lambda row: _policy(row.item[0].sharing)),
        Column("job", str, "job", lambda row: row.item[1].name),
        _of_job("submitted_s", "submitted"),
        _of_job("started_s", "started"),
        _of_job("ended_s", "ended"),
        Column("queue_wait_s", float, "queue wait", lambda row: _since_submission(row, row.item[1].summary.started_s)),
        Column("jct_s", float, "jct", lambda row: _since_submission(row, row.item[1].summary.ended_s)),
        Column(
            "workers",
            str,
            "workers over time",
            lambda row: ", ".join(f"{n} from {t:.1f}" for t, n in row.item[1].sizes),
        ),
        Column("makespan_s", float, "makespan", lambda row: seconds(row.item[0].summary.makespan_s)),
        Column("idle_gap_s", float, "idle gap", lambda row: seconds(row.item[0].summary.idle_gap_s)),
        Column("allocated", float, "allocated", lambda row: number(row.item[0].summary.allocated, ".3f")),
        Column("productive", float, "productive", lambda row: number(row.item[0].summary.productive, ".3f")),
    ],
    footer=_pictures,
)


def _preemptions(rows: Sequence[Stretch]) -> Iterator[str]:
    for pool, stretch in (row.item for row in rows):
        for preemption in pool.preemptions if stretch is pool.stretches[0] else ():
            yield (
                f"at {preemption.t:.2f} s {preemption.slots} more requested: slots free after "
                f"{seconds(preemption.free_s).text}, serving ready after {seconds(preemption.ready_s).text}"
            )


SERVINGS: TableKind[Stretch] = TableKind(
    summary="Every period of a pool with serving: who had slots, and how soon.",
    rows=lambda results: [
        OfLaunch(*row[:2], (row.item, stretch)) for row in _pools(results) for stretch in row.item.stretches
    ],
    columns=[
        TEST,
        LAUNCH,
        Column(
            "begin_s",
            float,
            "time s",
            lambda row: Cell(row.item[1].t, f"{row.item[1].t:.2f} to {row.item[1].end_s:.2f}"),
        ),
        Column("end_s", float, None, lambda row: row.item[1].end_s),
        Column("wanted", int, "wanted", lambda row: row.item[1].wanted),
        Column("serving", int, "serving", lambda row: row.item[1].serving),
        Column("training", int, "training", lambda row: row.item[1].training),
        Column("total", int, "total", lambda row: row.item[1].serving + row.item[1].training),
        Column("capacity", int, "capacity", lambda row: row.item[0].sharing.slots),
    ],
    footer=_preemptions,
)


def _uses(pool: PoolRun) -> Iterator[tuple[int, float, float, str, str]]:
    """Yield (slot, begin, end, owner, activity) of each use of a slot, in seconds; a use within another comes later."""
    for hold in pool.holds:
        yield hold.slot, hold.t, hold.end_s, hold.owner, "has it"
        if hold.ready_s is not None:
            yield hold.slot, hold.ready_s, hold.end_s, hold.owner, "is ready"
    for job in pool.jobs:
        since_s = job.summary.started_s or 0.0
        for worker in job.workers:
            if worker.first_step_s is not None and worker.last_step_s is not None:
                yield worker.slot, worker.first_step_s + since_s, worker.last_step_s + since_s, job.name, "trains"


def picture(pool: PoolRun) -> list[str]:
    """A pool as text: a line per slot with who trains or serves, from the first submission to the last end of a job."""
    begin = min(job.summary.submitted_s for job in pool.jobs)
    makespan_s, sharing = pool.summary.makespan_s, pool.sharing
    letters = {job.name: letter for job, letter in zip(pool.jobs, _LETTERS, strict=False)} | {SERVING: "s"}
    lines = {slot: [_FREE] * _WIDTH for slot in range(sharing.slots)}
    for slot, begin_s, end_s, owner, what in _uses(pool):
        for column in range(_WIDTH):
            if begin_s <= begin + (column + 0.5) * makespan_s / _WIDTH < end_s:
                lines[slot][column] = _IDLE if what == "has it" else letters[owner]
    legend = ", ".join(f"{letter}: {name}" for name, letter in letters.items() if name != SERVING or sharing.demand)
    shown = [f"slot {slot} {''.join(line)}" for slot, line in lines.items()]
    first, last = f"{begin:.0f} s", f"{begin + makespan_s:.0f} s"
    return [
        *shown,
        f"       {first}{last:>{_WIDTH - len(first)}}",
        f"{legend}; {_IDLE}: owned, without a step; {_FREE}: free",
    ]


def _policy(pool: Sharing) -> str:
    words: list[str] = [pool.policy]
    words += ["synthetic"] if pool.compute == "synthetic" else []
    words += [f"{pool.slots} slots on {pool.cores} cores"] if pool.cores is not None else []
    return ", ".join(words)


MOST_TIMELINES = 3  # that are drawn of a case: the table below has them all


def elastic_charts(result: CaseResult) -> Iterator[Chart]:
    """The slots of an elastic job over time: what each worker did, the stalls, changes and ends of epochs."""
    for launch in result.launches[:MOST_TIMELINES]:
        for run in runs_of(launch.events):
            if not run.name:
                yield _timeline(run, f"Nodes over time{_of_launch(result, launch)}")


def _timeline(job: JobRun, title: str) -> Chart:
    slots = sorted({worker.slot for worker in job.workers})
    spans = [
        (slots.index(worker.slot), short(begin), short(end), what)
        for worker in job.workers
        for what, begin, end in spans_of(worker)
    ]
    rows = [f"slot {slot}" for slot in slots]
    stalls = [
        (len(rows), short(change.t), short(change.t + change.stall_s), "stall")
        for change in job.changes
        if change.stall_s is not None
    ]
    rows += ["stalls"] if stalls else []
    ends = list(accumulate((epoch.seconds for epoch in job.epochs), initial=0.0))
    spells = [
        (len(rows), short(begin), short(end), f"epoch {epoch.epoch}")
        for epoch, begin, end in zip(job.epochs, ends, ends[1:], strict=False)
    ]
    marks = [(short(change.t), text_of_change(change)) for change in job.changes]
    return page.spans(title, [*rows, "epochs"], [*spans, *stalls, *spells], marks)


def pool_charts(result: CaseResult) -> Iterator[Chart]:
    for launch, found in _drawn_pools(result):
        spans = [(slot, short(begin), short(end), f"{who} {what}") for slot, begin, end, who, what in _uses(found)]
        rows = [f"slot {slot}" for slot in range(found.sharing.slots)]
        marks = [(short(job.summary.submitted_s), f"{job.name} asks for slots") for job in found.jobs]
        yield page.spans(f"Slots over time{_of_launch(result, launch)}", rows, spans, marks)


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
        begins = [stretch.t for stretch in found.stretches]
        series = [
            page.line(name, points(zip(begins, slots, strict=True)), "steps") for name, slots in over_time.items()
        ]
        title = f"Slots in use{_of_launch(result, launch)}"
        yield page.lines(title, page.axis("time", "s"), page.axis("slots"), series)


def _drawn_pools(result: CaseResult) -> Iterator[tuple[LaunchRecord, PoolRun]]:
    for launch in result.launches[:MOST_TIMELINES]:
        if (pool := pool_of(launch.events)) is not None:
            yield launch, pool


def _of_launch(result: CaseResult, launch: LaunchRecord) -> str:
    return f", launch {launch.index + 1}" if len(result.launches) > 1 else ""


def write_trace(record: RunRecord, out: BinaryIO) -> None:
    """Write a trace in the Trace Event Format (JSON object form), with a process per launch."""
    events: list[dict[str, Any]] = []
    for result in record.results:
        for launch in result.launches:
            if launch.events:
                number = 1 + sum(event["ph"] == "M" for event in events)
                name = f"{result.case.title}, launch {launch.index + 1}"
                events.append({"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}})
                events += [{"pid": number, **event} for event in _events_of(launch)]
    if not events:
        raise DistbenchError(
            "the run has no elastic job, and --format trace writes the timelines of these; "
            "of operations pytest --distbench-trace makes a trace, while it runs"
        )
    out.write(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}).encode())


def _events_of(launch: LaunchRecord) -> Iterator[dict[str, Any]]:
    pool = pool_of(launch.events)
    begin_s = min(hold.t for hold in pool.holds) if pool is not None else 0.0
    for hold in pool.holds if pool is not None else []:
        span = {"ts": (hold.t - begin_s) * 1e6, "dur": (hold.end_s - hold.t) * 1e6}
        yield {"ph": "X", "name": hold.owner, "tid": hold.slot, **span, "args": {"asked_s": hold.asked_s}}
    for run in runs_of(launch.events):
        since_s = run.summary.start_s if pool is None else run.summary.started_s - begin_s
        name = run.name and f"{run.name}: "
        for worker in run.workers:
            for part, begin, end in spans_of(worker):
                arguments = {"generation": worker.generation, "rank": worker.rank, "resumed_at": worker.resumed_at}
                span = {"ts": (begin + since_s) * 1e6, "dur": (end - begin) * 1e6}
                yield {"ph": "X", "name": f"{name}{part}", "tid": worker.slot, **span, "args": arguments}
        for change in run.changes:
            for slot in change.slots:
                ts = (change.t + since_s) * 1e6
                yield {"ph": "i", "name": f"{name}{change.kind}", "tid": slot, "ts": ts, "s": "p"}


TRACE = of_run(write_trace, opens_in="chrome://tracing or ui.perfetto.dev", needs="an elastic job")
