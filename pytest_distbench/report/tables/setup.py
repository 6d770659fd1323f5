"""The set-up of each training, as reports 003 and 004 print it: a parameter of the experiment, and its value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pytest_distbench.machine.addresses import mask_addresses
from pytest_distbench.records.case import CPUS, NODES
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.network import NETWORK
from pytest_distbench.records.rate import SAMPLES
from pytest_distbench.records.run import CaseResult, RunRecord
from pytest_distbench.report.tables.table import Column, TableKind

PARAMETERS, TENSORS = "parameters", "tensors"
"""Metrics: how much of the model is trained. The facts of the first are its set-up in words."""

_GOAL = "steps_to_"
_NOT_SHOWN = ("communication", "data", "goal", "storage")
"""Parameters that are a row of their own, a path of this machine, or what a fixture sets."""


class SetupRow(NamedTuple):
    """A parameter of a test's training; its values at all world sizes, the smallest first."""

    test: str
    parameter: str
    values: Sequence[str]


def setup_rows(results: Sequence[CaseResult], run: RunRecord | None = None) -> list[SetupRow]:
    """Of tests whose trainings have told how large their model is, or had a goal."""
    tests: dict[str, list[CaseResult]] = {}
    for result in results:
        case = result.case
        if any(m.name == PARAMETERS or m.name.startswith(_GOAL) for m in _measured(result)):
            tests.setdefault(f"{case.shown_test}[{case.family}]" if case.family else case.shown_test, []).append(result)
    rows = []
    for test, sizes in tests.items():
        found: dict[str, dict[str, None]] = {}
        for result in sorted(sizes, key=lambda result: result.case.world_size):
            for parameter, value in _setup_of(result):
                if value not in (None, ""):
                    found.setdefault(parameter, {})[_text(value)] = None
        rows += [SetupRow(test, parameter, [*values]) for parameter, values in found.items()]
    if run is not None and "addresses" in run.settings:
        return rows
    return [row._replace(values=[mask_addresses(value) for value in row.values]) for row in rows]


def _measured(result: CaseResult) -> list[Measurement]:
    return [m for launch in result.launches for m in launch.measurements]


def _text(value: object) -> str:
    return f"{value:,.6g}" if isinstance(value, float) else str(value)


def _setup_of(result: CaseResult) -> Iterator[tuple[str, object]]:
    case, environment, around = result.case, result.environment, result.case.conditions.around
    measured = {m.name: m for m in _measured(result)}
    told = measured[PARAMETERS].facts if PARAMETERS in measured else {}
    yield from told.items()
    for name in (PARAMETERS, TENSORS):
        if name in measured and measured[name].value is not None:
            yield f"trainable {name}", f"{measured[name].value:,.0f}"
    yield from ((name, value) for name, value in case.params.items() if name not in (*told, *_NOT_SHOWN))
    yield "data", next((m.identity["data"] for m in measured.values() if "data" in m.identity), "")
    for m in measured.values():
        if m.name.startswith(_GOAL) and "target" in m.identity:
            yield "goal", f"{m.name.removeprefix(_GOAL)} {m.identity['target']:g}"
            yield "steps between evaluations", m.identity.get("every")
    yield "samples per step", measured[SAMPLES].value if SAMPLES in measured else None
    yield "workers", case.world_size
    yield "backend", case.conditions.backend
    yield from ((name, around.get(name)) for name in (NETWORK, NODES))
    yield "CPUs of a worker", around.get(CPUS)
    yield "device", environment.device
    yield from ((name, environment.system.get(name)) for name in ("machine", "memory"))
    yield "CPU cores", environment.cores


SETUP: TableKind[SetupRow] = TableKind(
    summary="What each training is made of: model, batch, optimizer, schedule, goal, workers, CPUs and memory.",
    rows=setup_rows,
    columns=[
        Column("test", str, "test", lambda row: row.test),
        Column("parameter", str, "Experiment parameter", lambda row: row.parameter.replace("_", " ")),
        Column("value", str, "Value", lambda row: ", ".join(row.values)),
    ],
    needs="a training that calls record_setup(...), or has a goal",
    takes=["run"],
)
