"""The timeline of an elastic training beside the fixed one's, row by row as reports of on/off cycles print it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pytest_distbench.records.elastic import ChangeResult, ElasticJob, ElasticResult, EpochResult
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.tables.table import LAUNCH, TEST, Column, TableKind, number, rows_of_launches

SETUP_PARTS = ("import", "group_init", "build", "checkpoint_load")
"""Of a recovery: what the processes that began anew did before their first step."""
WORKER_PARTS = ("rendezvous", "process_start")
"""What the agents did to have workers again."""


class _Row(NamedTuple):
    """What one side did, in words and in seconds."""

    epoch: str
    text: str
    seconds: float
    compares: bool = True


def setup_name(job: ElasticJob) -> str:
    """Nodes that stay and nodes that come and go: ``4:4 (10 s cycle)``."""
    if job.plan.cycle is not None:
        return f"{job.least}:{job.most - job.least} ({job.plan.cycle.period_s:g} s cycle)"
    return f"{job.least}:{job.most - job.least} ({job.plan})" if job.plan.changes else f"{job.start}:0"


class CycleRow(NamedTuple):
    """What a launch of an elastic run did, and the same of the fixed run of its test; the names of both runs."""

    result: CaseResult
    launch: LaunchRecord
    mine: _Row
    other: _Row | None
    sides: tuple[str, str]

    @property
    def epoch(self) -> str:
        """Its number; empty where it is none."""
        return self.mine.epoch if self.mine.compares and self.mine.epoch.isdecimal() else ""

    @property
    def other_s(self) -> float | None:
        """What the fixed run took."""
        return None if self.other is None else self.other.seconds

    @property
    def difference_s(self) -> float | None:
        """How much longer it took."""
        return None if self.other is None else self.mine.seconds - self.other.seconds


def _cycle_rows(results: Sequence[CaseResult]) -> Iterator[CycleRow]:
    jobs = list(rows_of_launches(results, lambda launch: launch.elastic))
    fixed = {result.nodeid: job for result, _, job in jobs if is_fixed(job.job)}
    for result, launch, job in jobs:
        if is_fixed(job.job):
            continue
        beside = fixed.get(result.nodeid)
        theirs = {row.epoch: row for row in _rows(beside)} if beside is not None else {}
        sides = (f"Ondemand {beside.job.start}" if beside is not None else "Ondemand", _elastic_name(job.job))
        for mine in _rows(job):
            yield CycleRow(result, launch, mine, theirs.get(mine.epoch) if mine.compares else None, sides)


def _sides(rows: Sequence[CycleRow]) -> tuple[str, str]:
    """What stands above them, where all rows are of the same two."""
    sides = {row.sides for row in rows}
    return sides.pop() if len(sides) == 1 else ("Ondemand", "Elastic")


CYCLE: TableKind[CycleRow] = TableKind(
    summary="Every epoch and every event of an elastic run, beside the fixed run of the same test: who lost how much.",
    rows=lambda results: list(_cycle_rows(results)),
    columns=[
        Column("epoch", str, "Epoch", lambda row: row.epoch),
        Column("ondemand", str, lambda rows: _sides(rows)[0], lambda row: "" if row.other is None else row.other.text),
        Column("ondemand_s", float, "Perf", lambda row: number(row.other_s, ".5f", nothing="")),
        Column("elastic", str, lambda rows: _sides(rows)[1], lambda row: row.mine.text),
        Column("elastic_s", float, "Perf", lambda row: number(row.mine.seconds, ".5f")),
        Column("difference_s", float, "Difference (s)", lambda row: number(row.difference_s, "+.5f", nothing="")),
        TEST,
        LAUNCH,
    ],
)


def _elastic_name(job: ElasticJob) -> str:
    cycle = job.plan.cycle
    if cycle is None:
        return f"Elastic {setup_name(job)}"
    return f"Elastic Cycle {cycle.period_s:g} s on and off {job.least} on demand {job.most - job.least} elastic"


def _rows(job: ElasticResult) -> Iterator[_Row]:
    """Where all the time of a launch went; what a change took is in its epoch's time, and stands before it."""
    yield _Row("start", f"Script setup took {job.start_s:.5f}", job.start_s)
    for epoch in job.epochs:
        for index in epoch.changes:
            yield from _event_rows(job.changes[index])
        yield _Row(str(epoch.epoch), _epoch_text(epoch, warm_up_mark(job, epoch)), epoch.seconds)
    whole = job.start_s + job.training_s + job.end_s
    told = job.start_s + sum(epoch.seconds for epoch in job.epochs)
    yield _Row("unaccounted", f"unaccounted {whole - told:.5f}", whole - told)
    training = whole - job.start_s  # a warm machine starts in half the time, and that is no training
    yield _Row("total", f"Total train time is {training:.5f} without the start", training)


def _event_rows(change: ChangeResult) -> Iterator[_Row]:
    workers = sum(change.parts.get(part, 0.0) for part in WORKER_PARTS)
    setup = sum(change.parts.get(part, 0.0) for part in SETUP_PARTS)
    lost = (change.stall_s or 0.0) + change.redone_s
    if change.parts:
        yield _Row("", f"initialize_workers took {workers:.3f}", workers, compares=False)
        yield _Row("", f"Script setup took {setup:.5f}", setup, compares=False)
    yield _Row("", f"Epoch time lost {lost:.5f} ({change.kind})", lost, compares=False)


def warm_up_mark(job: ElasticResult, epoch: EpochResult) -> str:
    """Behind an epoch in which the learning rate of the same nodes rises or after which it does, until it falls."""
    epochs: set[int | None] = set()
    for before, after in itertools.pairwise(job.lr):
        if before.nodes == after.nodes and after.lr < before.lr:
            break
        if before.nodes == after.nodes:
            last = after.epoch if after.epoch == before.epoch else (after.epoch or 0) - 1
            epochs |= {*range(before.epoch or 0, (last or 0) + 1)}
    return " (warm-up)" if epoch.epoch in epochs else ""


def _epoch_text(epoch: EpochResult, mark: str) -> str:
    told = [("loss", epoch.loss), ("accuracy", epoch.accuracy), ("top_5_accuracy", epoch.top5)]
    numbers = "".join(f" {name}: {value:.4f}" for name, value in told if value is not None)
    return f"Epoch {epoch.epoch} took {epoch.seconds:.2f}{mark}{numbers}"


def is_fixed(job: ElasticJob) -> bool:
    """Whether nothing changes its membership."""
    return not job.plan.changes and job.plan.cycle is None
