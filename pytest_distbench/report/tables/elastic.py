"""The tables of elastic jobs: what each change of membership cost, the epochs beside a fixed run's, and the summary."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from pytest_distbench.records.elastic import (
    PARTS,
    ChangeResult,
    ElasticResult,
    EpochResult,
    Moment,
    RateChange,
    WorkerResult,
)
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.tables.cycle import is_fixed, setup_name, warm_up_mark
from pytest_distbench.report.tables.table import LAUNCH, TEST, Cell, Column, OfLaunch, TableKind, number, seconds

LEARNING_RATE = "learning_rate"
"""What a training calls the series of its rate, step by step."""


def _jobs(results: Sequence[CaseResult]) -> Iterator[OfLaunch[ElasticResult]]:
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
    """From its first step on."""
    return job.training_s + job.end_s


def _last(job: ElasticResult) -> EpochResult | None:
    return job.epochs[-1] if job.epochs else None


def _value(name: str, heading: str) -> Column[OfLaunch[ElasticResult]]:
    """A metric of the whole launch."""

    def cell(row: OfLaunch[ElasticResult]) -> object:
        return {m.name: m.value for m in row.launch.measurements if not m.at.keys() - {"job"}}.get(name)

    return Column(name, float, heading, cell)


JOBS: TableKind[OfLaunch[ElasticResult]] = TableKind(
    summary="One row per launch of an elastic job: its set-up, epochs, time from its first step on, and quality.",
    rows=lambda results: list(_jobs(results)),
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
    summary="Every change of membership: what it cost, and where the time went.",
    rows=lambda results: [
        OfLaunch(row.result, row.launch, change) for row in _jobs(results) for change in row.item.changes
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


class _Part(NamedTuple):
    """A part of the time of a launch; its epoch, if it is one, and the changes in it."""

    name: str
    seconds: float
    epoch: EpochResult | None = None
    changes: Sequence[ChangeResult] = ()
    mark: str = ""


def _parts_of(job: ElasticResult) -> Iterator[_Part]:
    """Where all the time of a launch went: its start, its epochs, and its end."""
    yield _Part("start", job.start_s)
    for epoch in job.epochs:
        changes = [job.changes[index] for index in epoch.changes]
        yield _Part(str(epoch.epoch), epoch.seconds, epoch, changes, warm_up_mark(job, epoch))
    yield _Part("end", job.end_s)
    whole = job.start_s + job.training_s + job.end_s
    told = job.start_s + job.end_s + sum(epoch.seconds for epoch in job.epochs)
    yield _Part("unaccounted", whole - told)
    yield _Part("total", whole)


class EpochRow(NamedTuple):
    """A part of the time of a launch, and the same part of the fixed run of the test."""

    result: CaseResult
    launch: LaunchRecord
    part: _Part
    fixed: _Part | None

    @property
    def epoch(self) -> EpochResult | None:
        """If the part is one."""
        return self.part.epoch

    @property
    def difference_s(self) -> float | None:
        """How much longer it took than in the fixed run."""
        return None if self.fixed is None else self.part.seconds - self.fixed.seconds


def _epochs(results: Sequence[CaseResult]) -> Iterator[EpochRow]:
    fixed = {result.nodeid: _parts_of_first(result) for result in results if _is_fixed(result)}
    for row in _jobs(results):
        beside = {} if _is_fixed(row.result) else fixed.get(row.result.nodeid, {})
        for part in _parts_of(row.item):
            yield EpochRow(row.result, row.launch, part, beside.get(part.name))


def _is_fixed(result: CaseResult) -> bool:
    jobs = [launch.elastic for launch in result.launches if launch.elastic is not None]
    return bool(jobs) and all(is_fixed(job.job) for job in jobs)


def _parts_of_first(result: CaseResult) -> dict[str, _Part]:
    job = next(launch.elastic for launch in result.launches if launch.elastic is not None)
    return {part.name: part for part in _parts_of(job)}


def _changes(part: _Part) -> str:
    return ", ".join(f"{c.kind} to {'?' if c.after is None else c.after}" for c in part.changes)


def _redone(part: _Part) -> Cell:
    steps = part.epoch and part.epoch.steps_redone
    return Cell(steps, str(steps) if part.changes else "")


EPOCHS: TableKind[EpochRow] = TableKind(
    summary="Every epoch of every elastic job, and how much longer it took than in the fixed run of the same test.",
    # What lies outside of epochs has rows of its own, so that the rows of a launch sum up to all its time.
    rows=lambda results: list(_epochs(results)),
    columns=[
        TEST,
        LAUNCH,
        Column("epoch", str, "epoch", lambda row: Cell(row.part.name, row.part.name + row.part.mark)),
        Column("seconds", float, "took", lambda row: seconds(row.part.seconds)),
        Column("fixed_s", float, "fixed", lambda row: seconds(row.fixed and row.fixed.seconds)),
        Column("difference_s", float, "difference", lambda row: number(row.difference_s, "+.2f", unit=" s")),
        Column("nodes", str, "nodes", lambda row: ", ".join(map(str, row.epoch.nodes)) if row.epoch else ""),
        Column("loss", float, "loss", lambda row: row.epoch and row.epoch.loss),
        Column("accuracy", float, "accuracy", lambda row: row.epoch and row.epoch.accuracy),
        Column("top5", float, "top5", lambda row: row.epoch and row.epoch.top5),
        Column("lr", float, "lr", lambda row: row.epoch and row.epoch.lr),
        Column("changes", str, "changes", lambda row: _changes(row.part)),
        Column(
            "stall_s",
            float,
            "stall",
            lambda row: seconds(row.epoch.stall_s if row.epoch and row.part.changes else None),
        ),
        Column("steps_redone", int, "steps redone", lambda row: _redone(row.part)),
        Column(
            "fixed_accuracy",
            float,
            "fixed accuracy",
            lambda row: row.fixed.epoch.accuracy if row.fixed and row.fixed.epoch else None,
        ),
    ],
)


WORKERS: TableKind[OfLaunch[WorkerResult]] = TableKind(
    summary="The timeline: every slot in every generation, from its process to its last step.",
    rows=lambda results: [
        OfLaunch(row.result, row.launch, worker) for row in _jobs(results) for worker in row.item.workers
    ],
    columns=[
        TEST,
        LAUNCH,
        Column("generation", int, "generation", lambda row: row.item.generation),
        Column("slot", int, "slot", lambda row: row.item.slot),
        Column("rank", int, "rank", lambda row: Cell(row.item.rank, f"{row.item.rank} of {row.item.world_size}")),
        Column("process_s", float, "process at s", lambda row: number(row.item.process_s, ".2f")),
        Column("imported_s", float, "imported", lambda row: number(row.item.imported_s, ".2f")),
        Column("joined_s", float, "in its group", lambda row: number(row.item.joined_s, ".2f")),
        Column("loaded_s", float, "loaded", lambda row: number(row.item.loaded_s, ".2f")),
        Column("first_step_s", float, "first step", lambda row: number(row.item.first_step_s, ".2f")),
        Column("last_step_s", float, "last step", lambda row: number(row.item.last_step_s, ".2f")),
        Column("resumed_at", int, "resumed at", lambda row: row.item.resumed_at),
        Column("steps", int, "steps", lambda row: row.item.steps),
    ],
)


def _rates(results: Sequence[CaseResult]) -> Iterator[OfLaunch[RateChange]]:
    """Of elastic jobs, which tell of it by themselves, and of trainings that record it, the first of each case."""
    for row in _jobs(results):
        yield from (OfLaunch(row.result, row.launch, rate) for rate in row.item.lr)
    for result in results:
        told = ((launch, m) for launch in result.launches for m in launch.measurements if m.name == LEARNING_RATE)
        for launch, measured in itertools.islice(told, 1):
            before = None
            for step, rate in enumerate(measured.series, 1):
                if rate != before:
                    change = RateChange(step=step, epoch=None, nodes=result.case.world_size, lr=rate)
                    yield OfLaunch(result, launch, change)
                before = rate


RATES: TableKind[OfLaunch[RateChange]] = TableKind(
    summary="The trace of the learning rate: each step from which on it is another one.",
    rows=lambda results: list(_rates(results)),
    columns=[
        TEST,
        LAUNCH,
        Column("step", int, "from step", lambda row: row.item.step),
        Column("epoch", int, "epoch", lambda row: row.item.epoch),
        Column("nodes", int, "ranks", lambda row: row.item.nodes),
        Column("lr", float, "lr", lambda row: row.item.lr),
    ],
    needs="an elastic job, or a training that records learning_rate at each step",
)
