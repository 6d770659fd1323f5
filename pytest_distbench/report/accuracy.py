"""Accuracies epoch by epoch, the runs of a test side by side."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.section import Cell, Section
from pytest_distbench.store.rows import Column

_NAME = "accuracy"
_AT = "epoch"
_IN_TRAINING = ", in training"


def accuracy_section(results: Sequence[CaseResult]) -> Section:
    """A row per epoch of a test, a column per run that recorded ``accuracy`` at each epoch; medians over launches.

    What ``training.note(accuracy=...)`` told of is of the batches trained on, and its column says so.
    A test with one such run has nothing to show side by side.
    """
    tests: dict[str, dict[str, dict[int, list[float]]]] = {}
    for result in results:
        for launch, measurement in ((each, m) for each in result.launches for m in each.measurements):
            if measurement.name == _NAME and set(measurement.at) == {_AT} and measurement.value is not None:
                runs = tests.setdefault(result.case.test, {})
                epochs = runs.setdefault(_run_of(result) + _IN_TRAINING * _is_noted(launch), {})
                epochs.setdefault(int(measurement.at[_AT]), []).append(measurement.value)
    tests = {test: runs for test, runs in tests.items() if len(runs) > 1}
    names = list(dict.fromkeys(name for runs in tests.values() for name in runs))
    rows = []
    for test, runs in tests.items():
        for epoch in sorted({epoch for epochs in runs.values() for epoch in epochs}):
            found = [runs.get(name, {}).get(epoch) for name in names]
            cells = [Cell(None, "-") if each is None else Cell(median(each), f"{median(each):.4f}") for each in found]
            rows.append([Cell(test, test.rpartition("::")[2]), Cell(epoch, str(epoch)), *cells])
    columns: dict[str, Column] = {"test": str, "epoch": int, **dict.fromkeys(names, float)}
    return Section(columns=columns, headings=["test", "epoch", *names], rows=rows)


def _is_noted(launch: LaunchRecord) -> bool:
    return launch.elastic is not None and any(epoch.accuracy is not None for epoch in launch.elastic.epochs)


def _run_of(result: CaseResult) -> str:
    """What tells a run from the others of its test."""
    return result.case.label or result.case.id
