"""Accuracies: epoch by epoch, the runs of a test side by side; and the last ones, beside what each took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from pytest_distbench.records.case import OVERSUBSCRIBED
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.rate import RATE
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.tables.table import Cell, Column, TableKind, number

_NAME = "accuracy"
_AT = "epoch"
_IN_TRAINING = ", in training"
"""What ``training.note(accuracy=...)`` told of is of the batches trained on, and its column says so."""


class AccuracyRow(NamedTuple):
    """One epoch of a test, with all its runs: name -> epoch -> values of its launches."""

    test: str
    epoch: int
    runs: dict[str, dict[int, list[float]]]


def _rows(results: Sequence[CaseResult]) -> list[AccuracyRow]:
    """A test with one such run has nothing to show side by side."""
    tests: dict[str, dict[str, dict[int, list[float]]]] = {}
    for result in results:
        for launch, measurement in ((each, m) for each in result.launches for m in each.measurements):
            if measurement.name == _NAME and set(measurement.at) == {_AT} and measurement.value is not None:
                runs = tests.setdefault(result.case.test, {})
                epochs = runs.setdefault(_run_of(result) + _IN_TRAINING * _is_noted(launch), {})
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
    summary=(
        "A row per epoch of a test, a column per run that recorded ``accuracy`` at each epoch; medians over launches."
    ),
    rows=_rows,
    columns=[
        Column("test", str, "test", lambda row: Cell(row.test, row.test.rpartition("::")[2])),
        Column("epoch", int, "epoch", lambda row: row.epoch),
    ],
    further=lambda rows: list(map(_column, dict.fromkeys(run for row in rows for run in row.runs))),
    needs="two runs of a test that record accuracy at each epoch",
)


def _is_noted(launch: LaunchRecord) -> bool:
    return launch.elastic is not None and any(epoch.accuracy is not None for epoch in launch.elastic.epochs)


def _run_of(result: CaseResult) -> str:
    """What tells a run from the others of its test."""
    return result.case.label or result.case.id


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
    summary="Each training with its rate and its last accuracies: what more workers do to what is learned.",
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
