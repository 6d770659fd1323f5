"""The tables of trainings: accuracies, and each epoch next to the fixed run's, as reports of on/off cycles have it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from pytest_distbench.elastic.records import JobRun, event, runs_of
from pytest_distbench.elastic.tables import jobs_of, setup_name
from pytest_distbench.records.case import OVERSUBSCRIBED
from pytest_distbench.records.iteration import RATE
from pytest_distbench.records.kinds import grouped
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.wire import Event
from pytest_distbench.report.tables.table import LAUNCH, TEST, Cell, Column, OfLaunch, TableKind, number, seconds

_NAME = "accuracy"
_AT = "epoch"
_IN_TRAINING = ", in training"
"""Suffix of a column with accuracies of ``training.note(accuracy=...)``, which are of the training batches."""


_Runs = dict[str, dict[int, list[float]]]  # all runs of a test by name: epoch -> values of their launches

AccuracyRow = tuple[str, int, _Runs]  # an epoch of a test


def _accuracy_rows(results: Sequence[CaseResult]) -> list[AccuracyRow]:
    tests: dict[str, _Runs] = {}
    for result in results:
        for launch, measurement in ((each, m) for each in result.launches for m in each.measurements):
            if measurement.name == _NAME and set(measurement.at) == {_AT} and measurement.value is not None:
                runs = tests.setdefault(result.case.test, {})
                is_noted = any(each.what == "epoch" and each.accuracy is not None for each in launch.events)
                epochs = runs.setdefault((result.case.label or result.case.id) + _IN_TRAINING * is_noted, {})
                epochs.setdefault(int(measurement.at[_AT]), []).append(measurement.value)
    return [
        (test, epoch, runs)
        for test, runs in tests.items()
        if len(runs) > 1
        for epoch in sorted({epoch for epochs in runs.values() for epoch in epochs})
    ]


def _column(run: str) -> Column[AccuracyRow]:
    def cell(row: AccuracyRow) -> Cell:
        _, epoch, runs = row
        found = runs.get(run, {}).get(epoch)
        return number(median(found) if found else None, ".4f")

    return Column(run, float, run, cell)


ACCURACY: TableKind[AccuracyRow] = TableKind(
    summary="Accuracy by epoch, a column per run; medians over launches.",
    rows=_accuracy_rows,
    columns=[
        Column("test", str, "test", lambda row: Cell(row[0], row[0].rpartition("::")[2])),
        Column("epoch", int, "epoch", lambda row: row[1]),
    ],
    further=lambda rows: list(map(_column, dict.fromkeys(run for *_, runs in rows for run in runs))),
    needs="two runs of a test that record accuracy at each epoch",
)


_TOP1, _TOP5 = "final_accuracy", "final_top5"


FinalRow = tuple[CaseResult, Mapping[str, float]]
"""A row: a case, and its metrics by name, medians over its launches and seeds."""


def _final_rows(results: Sequence[CaseResult]) -> list[FinalRow]:
    rows: list[FinalRow] = []
    for result in results:
        measured = (m for launch in result.launches for m in launch.measurements)
        found = grouped((m.name, m.value) for m in measured if m.value is not None and not m.at.keys() - {"seed"})
        if _TOP1 in found and _TOP5 in found:
            rows.append((result, {name: median(values) for name, values in found.items()}))
    return rows


def _note(result: CaseResult) -> str:
    cores = result.case.conditions.around.get(OVERSUBSCRIBED, "")
    return f"{OVERSUBSCRIBED}: {cores.replace('-', ' ')}" if cores else ""


FINAL_ACCURACY: TableKind[FinalRow] = TableKind(
    summary="Each training with its rate and its last accuracies, by workers.",
    rows=_final_rows,
    columns=[
        Column("test", str, "Description", lambda row: Cell(row[0].nodeid, row[0].case.title)),
        Column("workers", int, "Workers", lambda row: row[0].case.world_size),
        Column("batch", str, "batch of each", lambda row: str(row[0].case.params.get("batch", "-"))),
        Column(RATE, float, "processing rate (samples/s)", lambda row: row[1].get(RATE)),
        Column("top1", float, "top-1", lambda row: number(row[1][_TOP1], ".4f")),
        Column("top5", float, "top-5", lambda row: number(row[1][_TOP5], ".4f")),
        Column("note", str, "note", lambda row: _note(row[0])),
    ],
    needs=f"a training that records {_TOP1} and {_TOP5}",
)


LEARNING_RATE = "learning_rate"  # what a training calls the series of its rate, step by step

SETUP_PARTS = ("import", "group_init", "build", "checkpoint_load")
"""Parts of a recovery in which restarted processes prepare their first step."""
WORKER_PARTS = ("rendezvous", "process_start")  # what the agents did to have workers again


class EpochRow(NamedTuple):
    """A row: an epoch with its changes, a part of the launch outside of epochs, or a change of the learning rate.

    ``name`` identifies the row within its launch; ``other`` is the row of that name in the run of the same test whose
    membership does not change. ``sides``: headings of both runs, (this one, the other), or None.
    """

    result: CaseResult
    launch: LaunchRecord
    text: str
    seconds: float | None = None
    name: str = ""
    epoch: Event | None = None
    changes: Sequence[Event] = ()
    rate: Event | None = None
    other: EpochRow | None = None
    sides: tuple[str, str] | None = None

    @property
    def nodes(self) -> str:
        sizes = self.epoch.nodes if self.epoch else [self.rate.nodes] if self.rate else []
        return ", ".join(map(str, sizes))

    def fact(self, name: str) -> float | None:
        """A fact of the row's epoch, or of its learning rate, or None."""
        source = self.epoch or self.rate
        value: float | None = None if source is None else source.facts.get(name)
        return value

    @property
    def difference_s(self) -> float | None:
        other_s = None if self.other is None else self.other.seconds
        return None if self.seconds is None or other_s is None else self.seconds - other_s


def _rows(results: Sequence[CaseResult]) -> Iterator[EpochRow]:
    fixed = {
        result.nodeid: job
        for result in reversed(results)
        for launch in reversed(result.launches)
        for job in runs_of(launch.events)
        if not job.name and not job.job.plan
    }
    for row in jobs_of(results):
        job = row.item
        if not job.job.plan:
            yield from _job_rows(row)
            continue
        other = fixed.get(row.result.nodeid)
        theirs = {did.name: did for did in _job_rows(row._replace(item=other)) if did.name} if other is not None else {}
        name, cycle = setup_name(job.job), job.job.cycle
        if cycle is not None:
            nodes = f"{job.job.least} on demand {job.job.most - job.job.least} elastic"
            name = f"Cycle {cycle.period_s:g} s on and off {nodes}"
        sides = (f"Ondemand {other.job.start}" if other is not None else "Ondemand", f"Elastic {name}")
        yield from (did._replace(other=theirs.get(did.name), sides=sides) for did in _job_rows(row))
    for result in results:
        series = ((launch, m) for launch in result.launches for m in launch.measurements if m.name == LEARNING_RATE)
        for launch, measured in itertools.islice(series, 1):
            before = None
            for step, rate in enumerate(measured.values, 1):
                if rate != before:
                    change = event("rate", t=0.0, step=step, nodes=result.case.world_size, lr=rate)
                    yield _of_rate(result, launch, change)
                before = rate


def _job_rows(row: OfLaunch[JobRun]) -> Iterator[EpochRow]:
    result, launch, job = row
    start_s = job.summary.start_s
    yield EpochRow(result, launch, f"Script setup took {start_s:.5f}", start_s, "start")
    numbers = {epoch.epoch for epoch in job.epochs}
    for epoch in job.epochs:
        changes = [job.changes[index] for index in epoch.changes]
        before = [(rate.step, 1, _of_rate(result, launch, rate)) for rate in job.rates if rate.epoch == epoch.epoch]
        for change in changes:
            # its first step: what was lost is done again, and may be at another rate
            begins = math.inf if change.before_it is None else change.before_it["step"] + 1
            begins = begins if change.after_it is None else min(begins, change.after_it["step"])
            costs = [("Epoch time lost {:.5f}" + f" ({change.kind})", (change.stall_s or 0.0) + change.redone_s)]
            if change.parts:
                workers, setup = (sum(change.parts.get(p, 0.0) for p in parts) for parts in (WORKER_PARTS, SETUP_PARTS))
                costs[:0] = [("initialize_workers took {:.3f}", workers), ("Script setup took {:.5f}", setup)]
            before += [(begins, 0, EpochRow(result, launch, text.format(cost), cost)) for text, cost in costs]
        yield from (did for *_, did in sorted(before, key=lambda each: each[:2]))
        values = [("loss", epoch.loss), ("accuracy", epoch.accuracy), ("top_5_accuracy", epoch.top5)]
        means = "".join(f" {name}: {value:.4f}" for name, value in values if value is not None)
        text = f"Epoch {epoch.epoch} took {epoch.seconds:.2f}{warm_up_mark(job, epoch)}{means}"
        yield EpochRow(result, launch, text, epoch.seconds, str(epoch.epoch), epoch, changes)
    yield from (_of_rate(result, launch, rate) for rate in job.rates if rate.epoch not in numbers)
    whole = start_s + job.summary.training_s + job.summary.end_s
    rest = whole - (start_s + sum(epoch.seconds for epoch in job.epochs))
    yield EpochRow(result, launch, f"unaccounted {rest:.5f}", rest, "unaccounted")
    training = whole - start_s  # a warm machine starts in half the time, and that is no training
    yield EpochRow(result, launch, f"Total train time is {training:.5f} without the start", training, "total")


def _of_rate(result: CaseResult, launch: LaunchRecord, rate: Event) -> EpochRow:
    return EpochRow(result, launch, f"Learning rate {rate.lr:.4g} from step {rate.step}", rate=rate)


def warm_up_mark(job: JobRun, epoch: Event) -> str:
    """Return " (warm-up)" for an epoch until which the learning rate of equal nodes rises, before it ever falls."""
    epochs: set[int | None] = set()
    for before, after in itertools.pairwise(job.rates):
        if before.nodes == after.nodes and after.lr < before.lr:
            break
        if before.nodes == after.nodes:
            last = after.epoch if after.epoch == before.epoch else (after.epoch or 0) - 1
            epochs |= {*range(before.epoch or 0, (last or 0) + 1)}
    return " (warm-up)" if epoch.epoch in epochs else ""


def _numbers(name: str, heading: str, spec: str, value: Callable[[EpochRow], float | None]) -> Column[EpochRow]:
    return Column(name, float, heading, lambda row: number(value(row), spec, nothing=""), if_any=True)


def _of_epoch(name: str) -> Column[EpochRow]:
    return _numbers(name, name, ".4g", lambda row: row.epoch.facts[name] if row.epoch else None)


def _of_changes(row: EpochRow, name: str) -> Any:
    return row.epoch.facts[name] if row.epoch is not None and row.changes else None


def _changes(row: EpochRow) -> str:
    return ", ".join(f"{c.kind} to {'?' if c.after is None else c.after}" for c in row.changes)


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
        Column("epoch", int, "Epoch", lambda row: number(row.fact("epoch"), "d", nothing=""), if_any=True),
        Column(
            "ondemand", str, lambda rows: _sides(rows)[0], lambda row: row.other.text if row.other else "", if_any=True
        ),
        _numbers("ondemand_s", "Perf", ".5f", lambda row: row.other and row.other.seconds),
        Column("elastic", str, lambda rows: _sides(rows)[1], lambda row: row.text),
        _numbers("elastic_s", "Perf", ".5f", lambda row: row.seconds),
        _numbers("difference_s", "Difference (s)", "+.5f", lambda row: row.difference_s),
        Column("nodes", str, _ranks, lambda row: row.nodes, if_any=True),
        Column("step", int, "from step", lambda row: number(row.fact("step"), "d", nothing=""), if_any=True),
        _numbers("lr", "lr", ".4g", lambda row: row.fact("lr")),
        *map(_of_epoch, ("loss", "accuracy", "top5")),
        Column("changes", str, "changes", _changes, if_any=True),
        Column("stall_s", float, "stall", lambda row: seconds(_of_changes(row, "stall_s")), if_any=True),
        Column("steps_redone", int, "steps redone", lambda row: _of_changes(row, "steps_redone"), if_any=True),
        Column("fixed_accuracy", float, "fixed accuracy", lambda r: r.other and r.other.fact("accuracy"), if_any=True),
        TEST,
        LAUNCH,
    ],
    needs="an elastic job, or a training that records learning_rate at each step",
)
