"""The tables of trainings: accuracies; and each epoch beside the fixed run's, as reports of on/off cycles have it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from pytest_distbench.elastic.records import ElasticJob, JobRun, runs_of
from pytest_distbench.elastic.tables import is_fixed, jobs_of, setup_name
from pytest_distbench.elastic.timeline import event
from pytest_distbench.records.case import OVERSUBSCRIBED
from pytest_distbench.records.event import Event
from pytest_distbench.records.iteration import RATE
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.tables.table import LAUNCH, TEST, Cell, Column, TableKind, number, seconds

_NAME = "accuracy"
_AT = "epoch"
_IN_TRAINING = ", in training"
"""What ``training.note(accuracy=...)`` told of is of the batches trained on, and its column says so."""


class AccuracyRow(NamedTuple):
    """One epoch of a test, with all its runs: name -> epoch -> values of its launches."""

    test: str
    epoch: int
    runs: dict[str, dict[int, list[float]]]


def _accuracy_rows(results: Sequence[CaseResult]) -> list[AccuracyRow]:
    """A test with one such run has nothing to show side by side."""
    tests: dict[str, dict[str, dict[int, list[float]]]] = {}
    for result in results:
        for launch, measurement in ((each, m) for each in result.launches for m in each.measurements):
            if measurement.name == _NAME and set(measurement.at) == {_AT} and measurement.value is not None:
                runs = tests.setdefault(result.case.test, {})
                epochs = runs.setdefault((result.case.label or result.case.id) + _IN_TRAINING * _is_noted(launch), {})
                epochs.setdefault(int(measurement.at[_AT]), []).append(measurement.value)
    return [
        AccuracyRow(test, epoch, runs)
        for test, runs in tests.items()
        if len(runs) > 1
        for epoch in sorted({epoch for epochs in runs.values() for epoch in epochs})
    ]


def _column(run: str) -> Column[AccuracyRow]:
    def cell(row: AccuracyRow) -> Cell:
        found = row.runs.get(run, {}).get(row.epoch)
        return number(median(found) if found else None, ".4f")

    return Column(run, float, run, cell)


ACCURACY: TableKind[AccuracyRow] = TableKind(
    summary="Accuracy by epoch, a column per run; medians over launches.",
    rows=_accuracy_rows,
    columns=[
        Column("test", str, "test", lambda row: Cell(row.test, row.test.rpartition("::")[2])),
        Column("epoch", int, "epoch", lambda row: row.epoch),
    ],
    further=lambda rows: list(map(_column, dict.fromkeys(run for row in rows for run in row.runs))),
    needs="two runs of a test that record accuracy at each epoch",
)


def _is_noted(launch: LaunchRecord) -> bool:
    return any(each.what == "epoch" and each.accuracy is not None for each in launch.events)


_TOP1, _TOP5 = "final_accuracy", "final_top5"


class FinalRow(NamedTuple):
    """A training at one world size; medians over its launches and seeds, by metric."""

    result: CaseResult
    values: Mapping[str, float]


def _final_rows(results: Sequence[CaseResult]) -> list[FinalRow]:
    rows = []
    for result in results:
        found: dict[str, list[float]] = {}
        for measured in (m for launch in result.launches for m in launch.measurements):
            if measured.value is not None and not measured.at.keys() - {"seed"}:
                found.setdefault(measured.name, []).append(measured.value)
        if _TOP1 in found and _TOP5 in found:
            rows.append(FinalRow(result, {name: median(values) for name, values in found.items()}))
    return rows


def _note(row: FinalRow) -> str:
    cores = row.result.case.conditions.around.get(OVERSUBSCRIBED, "")
    return f"{OVERSUBSCRIBED}: {cores.replace('-', ' ')}" if cores else ""


FINAL_ACCURACY: TableKind[FinalRow] = TableKind(
    summary="Each training with its rate and its last accuracies, by workers.",
    rows=_final_rows,
    columns=[
        Column("test", str, "Description", lambda row: Cell(row.result.nodeid, row.result.case.title)),
        Column("workers", int, "Workers", lambda row: row.result.case.world_size),
        Column("batch", str, "batch of each", lambda row: str(row.result.case.params.get("batch", "-"))),
        Column(RATE, float, "processing rate (samples/s)", lambda row: row.values.get(RATE)),
        Column("top1", float, "top-1", lambda row: number(row.values[_TOP1], ".4f")),
        Column("top5", float, "top-5", lambda row: number(row.values[_TOP5], ".4f")),
        Column("note", str, "note", _note),
    ],
    needs=f"a training that records {_TOP1} and {_TOP5}",
)


LEARNING_RATE = "learning_rate"
"""What a training calls the series of its rate, step by step."""

SETUP_PARTS = ("import", "group_init", "build", "checkpoint_load")
"""Of a recovery: what the processes that began anew did before their first step."""
WORKER_PARTS = ("rendezvous", "process_start")
"""What the agents did to have workers again."""


class _Did(NamedTuple):
    """What a training did, in words and in seconds; the epoch, or the rate, if it is one.

    The ``name`` tells it from what else the training did, for the fixed run to be found by; empty: that has none.
    """

    text: str
    seconds: float | None = None
    name: str = ""
    epoch: Event | None = None
    changes: Sequence[Event] = ()
    rate: Event | None = None


class EpochRow(NamedTuple):
    """What a launch did, and the same of the fixed run of its test; the names of both runs, where it is elastic."""

    result: CaseResult
    launch: LaunchRecord
    mine: _Did
    other: _Did | None = None
    sides: tuple[str, str] | None = None

    @property
    def epoch(self) -> Event | None:
        return self.mine.epoch

    @property
    def changed(self) -> Event | None:
        """The epoch, if the membership changed in it."""
        return self.epoch if self.mine.changes else None

    @property
    def fixed(self) -> Event | None:
        """The same epoch of the fixed run."""
        return None if self.other is None else self.other.epoch

    @property
    def number(self) -> int | None:
        told = self.mine.rate or self.mine.epoch
        epoch: int | None = None if told is None else told.epoch
        return epoch

    @property
    def nodes(self) -> str:
        sizes = self.epoch.nodes if self.epoch else [self.mine.rate.nodes] if self.mine.rate else []
        return ", ".join(map(str, sizes))

    @property
    def lr(self) -> float | None:
        """From then on; of an epoch that of its last step."""
        told = self.epoch or self.mine.rate
        return told.lr if told else None

    @property
    def other_s(self) -> float | None:
        return None if self.other is None else self.other.seconds

    @property
    def difference_s(self) -> float | None:
        if self.mine.seconds is None or self.other_s is None:
            return None
        return self.mine.seconds - self.other_s


def _rows(results: Sequence[CaseResult]) -> Iterator[EpochRow]:
    """Of elastic jobs all that they did; of trainings that record their rate, that of the first launch of each case."""
    fixed = {
        result.nodeid: job
        for result in reversed(results)
        for launch in reversed(result.launches)
        for job in runs_of(launch.events)
        if not job.name and is_fixed(job.job)
    }
    for result, launch, job in jobs_of(results):
        if is_fixed(job.job):
            yield from (EpochRow(result, launch, did) for did in _told(job))
            continue
        beside = fixed.get(result.nodeid)
        theirs = {did.name: did for did in _told(beside) if did.name} if beside is not None else {}
        sides = (f"Ondemand {beside.job.start}" if beside is not None else "Ondemand", _elastic_name(job.job))
        yield from (EpochRow(result, launch, did, theirs.get(did.name), sides) for did in _told(job))
    for result in results:
        told = ((launch, m) for launch in result.launches for m in launch.measurements if m.name == LEARNING_RATE)
        for launch, measured in itertools.islice(told, 1):
            before = None
            for step, rate in enumerate(measured.values, 1):
                if rate != before:
                    change = event("rate", t=0.0, step=step, nodes=result.case.world_size, lr=rate)
                    yield EpochRow(result, launch, _of_rate(change))
                before = rate


def _elastic_name(job: ElasticJob) -> str:
    cycle = job.plan.cycle
    if cycle is None:
        return f"Elastic {setup_name(job)}"
    return f"Elastic Cycle {cycle.period_s:g} s on and off {job.least} on demand {job.most - job.least} elastic"


def _told(job: JobRun) -> Iterator[_Did]:
    """Where all the time of a launch went; what a change took is in its epoch's time, and stands before it."""
    yield _Did(f"Script setup took {job.told.start_s:.5f}", job.told.start_s, "start")
    numbers = {epoch.epoch for epoch in job.epochs}
    for epoch in job.epochs:
        changes = [job.changes[index] for index in epoch.changes]
        before = [(_step_of(change), 0, list(_of_change(change))) for change in changes]
        before += [(rate.step, 1, [_of_rate(rate)]) for rate in job.rates if rate.epoch == epoch.epoch]
        for *_, did in sorted(before, key=lambda each: each[:2]):
            yield from did
        text = _epoch_text(epoch, warm_up_mark(job, epoch))
        yield _Did(text, epoch.seconds, str(epoch.epoch), epoch=epoch, changes=changes)
    yield from (_of_rate(rate) for rate in job.rates if rate.epoch not in numbers)
    whole = job.told.start_s + job.told.training_s + job.told.end_s
    told = job.told.start_s + sum(epoch.seconds for epoch in job.epochs)
    yield _Did(f"unaccounted {whole - told:.5f}", whole - told, "unaccounted")
    training = whole - job.told.start_s  # a warm machine starts in half the time, and that is no training
    yield _Did(f"Total train time is {training:.5f} without the start", training, "total")


def _step_of(change: Event) -> float:
    """The first step after it: what was lost is done again, and may be at another rate."""
    before: float = math.inf if change.before_it is None else change.before_it["step"] + 1
    return before if change.after_it is None else min(before, change.after_it["step"])


def _of_change(change: Event) -> Iterator[_Did]:
    workers = sum(change.parts.get(part, 0.0) for part in WORKER_PARTS)
    setup = sum(change.parts.get(part, 0.0) for part in SETUP_PARTS)
    lost = (change.stall_s or 0.0) + change.redone_s
    if change.parts:
        yield _Did(f"initialize_workers took {workers:.3f}", workers)
        yield _Did(f"Script setup took {setup:.5f}", setup)
    yield _Did(f"Epoch time lost {lost:.5f} ({change.kind})", lost)


def _of_rate(rate: Event) -> _Did:
    return _Did(f"Learning rate {rate.lr:.4g} from step {rate.step}", rate=rate)


def warm_up_mark(job: JobRun, epoch: Event) -> str:
    """Behind an epoch in which the learning rate of the same nodes rises or after which it does, until it falls."""
    epochs: set[int | None] = set()
    for before, after in itertools.pairwise(job.rates):
        if before.nodes == after.nodes and after.lr < before.lr:
            break
        if before.nodes == after.nodes:
            last = after.epoch if after.epoch == before.epoch else (after.epoch or 0) - 1
            epochs |= {*range(before.epoch or 0, (last or 0) + 1)}
    return " (warm-up)" if epoch.epoch in epochs else ""


def _epoch_text(epoch: Event, mark: str) -> str:
    told = [("loss", epoch.loss), ("accuracy", epoch.accuracy), ("top_5_accuracy", epoch.top5)]
    numbers = "".join(f" {name}: {value:.4f}" for name, value in told if value is not None)
    return f"Epoch {epoch.epoch} took {epoch.seconds:.2f}{mark}{numbers}"


def _of_epoch(name: str) -> Column[EpochRow]:
    return Column(name, float, name, lambda row: number(getattr(row.epoch, name, None), ".4g", nothing=""), if_any=True)


def _changes(row: EpochRow) -> str:
    return ", ".join(f"{c.kind} to {'?' if c.after is None else c.after}" for c in row.mine.changes)


def _sides(rows: Sequence[EpochRow]) -> tuple[str, str]:
    sides = {row.sides for row in rows if row.sides is not None}
    return sides.pop() if len(sides) == 1 else ("Ondemand", "Elastic" if sides else "Training")


def _ranks(rows: Sequence[EpochRow]) -> str:
    return "nodes" if any(row.epoch is not None for row in rows) else "ranks"


EPOCHS: TableKind[EpochRow] = TableKind(
    summary="Every epoch, change and learning rate, next to the fixed run.",
    # What lies outside of epochs has rows of its own, so that epochs and what is unaccounted sum up to the total.
    rows=lambda results: list(_rows(results)),
    columns=[
        Column("epoch", int, "Epoch", lambda row: number(row.number, "d", nothing=""), if_any=True),
        Column(
            "ondemand", str, lambda rows: _sides(rows)[0], lambda row: row.other.text if row.other else "", if_any=True
        ),
        Column("ondemand_s", float, "Perf", lambda row: number(row.other_s, ".5f", nothing=""), if_any=True),
        Column("elastic", str, lambda rows: _sides(rows)[1], lambda row: row.mine.text),
        Column("elastic_s", float, "Perf", lambda row: number(row.mine.seconds, ".5f", nothing=""), if_any=True),
        Column(
            "difference_s", float, "Difference (s)", lambda r: number(r.difference_s, "+.5f", nothing=""), if_any=True
        ),
        Column("nodes", str, _ranks, lambda row: row.nodes, if_any=True),
        Column(
            "step",
            int,
            "from step",
            lambda row: number(row.mine.rate.step if row.mine.rate else None, "d", nothing=""),
            if_any=True,
        ),
        Column("lr", float, "lr", lambda row: number(row.lr, ".4g", nothing=""), if_any=True),
        *map(_of_epoch, ("loss", "accuracy", "top5")),
        Column("changes", str, "changes", _changes, if_any=True),
        Column("stall_s", float, "stall", lambda row: seconds(getattr(row.changed, "stall_s", None)), if_any=True),
        Column("steps_redone", int, "steps redone", lambda row: row.changed and row.changed.steps_redone, if_any=True),
        Column("fixed_accuracy", float, "fixed accuracy", lambda row: row.fixed and row.fixed.accuracy, if_any=True),
        TEST,
        LAUNCH,
    ],
    needs="an elastic job, or a training that records learning_rate at each step",
)
