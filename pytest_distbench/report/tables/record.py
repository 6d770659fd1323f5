"""What ran on what: launches, environment, set-up of trainings, and the record of an experiment.

The set-up is printed as in reports 003 and 004, an experiment as the fourteen fields of report 001 and what report 000
writes down of a run. What was stated of a test (docs/files.md) counts; where nothing was, what the run knows of
itself stands there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from pytest_distbench.launch.starters import LAUNCHERS
from pytest_distbench.machine.hardware import mask_addresses
from pytest_distbench.records.case import CPUS, OVERSUBSCRIBED, RANKS
from pytest_distbench.records.environment import GpuHost
from pytest_distbench.records.iteration import SAMPLES
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample, Scalar
from pytest_distbench.records.run import CaseResult, RunRecord
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
from pytest_distbench.units import format_bytes


class Fact(NamedTuple):
    name: str
    value: str
    planned: str


def _facts(results: Sequence[CaseResult], run: RunRecord | None = None) -> list[Fact]:
    """Each once, by their names in the order in which they are first told."""
    planned = {} if run is None else run.experiment.planned
    facts = (fact for result in results for fact in _facts_of(result).items())
    found = dict.fromkeys(Fact(name, value, planned.get(name, "")) for name, value in facts)
    names = list(dict.fromkeys(fact.name for fact in found))
    return sorted(found, key=lambda fact: names.index(fact.name))


def _facts_of(result: CaseResult) -> dict[str, str]:
    environment = result.environment
    return {
        "platform": environment.platform,
        "device": environment.device,
        "cores": str(environment.cores),
        **({"host": "shared with other runs"} if environment.shares_host else {}),
        **environment.system,
        **environment.software,
        **environment.variables,
        **(_gpu_facts(environment.gpu_host) if environment.gpu_host is not None else {}),
    }


def _gpu_facts(host: GpuHost) -> dict[str, str]:
    facts = {"host CPU": host.cpu, "newest CUDA of the driver": host.cuda}
    for rank, gpu in enumerate(host.gpus):
        limit = "" if gpu.power_limit_w is None else f"{gpu.power_limit_w:.0f} W"
        switches = {"ECC": gpu.ecc, "persistence": gpu.persistence}
        told = [f"{name} {'on' if is_on else 'off'}" for name, is_on in switches.items() if is_on is not None]
        memory = "" if gpu.memory_bytes is None else format_bytes(gpu.memory_bytes)
        pcie = f"PCIe {gpu.pcie}" if gpu.pcie else ""
        facts[gpu.label] = ", ".join(filter(None, [gpu.name, memory, limit, pcie, *told, gpu.uuid]))
        if host.links:
            joined = (f"{host.gpus[other].label} {link}" for other, link in enumerate(host.links[rank]) if link)
            facts[f"links of {gpu.label}"] = ", ".join(joined)
    facts |= {"not used": "; ".join(host.unreadable)} if host.unreadable else {}
    return facts


ENVIRONMENT: TableKind[Fact] = TableKind(
    summary="What the cases ran on.",
    rows=_facts,
    columns=[
        Column("name", str, "Stack", lambda fact: fact.name),
        Column("value", str, "current", lambda fact: fact.value),
        Column("planned", str, "Future", lambda fact: fact.planned, if_any=True),
    ],
    takes=["run"],
)


LAUNCHES: TableKind[OfLaunch[LaunchRecord]] = TableKind(
    summary="Every launch: outcome, duration and resources.",
    rows=lambda results: list(rows_of_launches(results, lambda launch: launch)),
    columns=[
        TEST,
        LAUNCH,
        Column("outcome", str, "outcome", lambda row: row.launch.outcome),
        Column("wall_s", float, "time", lambda row: seconds(row.launch.wall_s)),
        Column("peak_memory_bytes", int, "memory", lambda row: _memory(row.launch.peak_memory_bytes)),
        Column("foreign_cores", float, "cores of others", lambda row: number(row.launch.foreign_cores, ".2f")),
        Column("reason", str, "reason", lambda row: _first_line(row.launch.reason)),
    ],
)


def _first_line(text: str) -> Cell:
    return Cell(text, (text.splitlines() or [""])[0])


def _memory(num_bytes: int) -> Cell:
    return Cell(num_bytes, format_bytes(num_bytes) if num_bytes else "-")


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


def _measured(result: CaseResult) -> list[Sample]:
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
    yield from sorted((name, text) for name, text in around.items() if name not in (CPUS, OVERSUBSCRIBED))
    yield "CPUs of a worker", around.get(CPUS)
    yield "device", environment.device
    yield from ((name, environment.system.get(name)) for name in ("machine", "memory"))
    yield "CPU cores", environment.cores


SETUP: TableKind[SetupRow] = TableKind(
    summary="What each training consists of: model, batch, optimizer, goal, workers.",
    rows=setup_rows,
    columns=[
        Column("test", str, "test", lambda row: row.test),
        Column("parameter", str, "Experiment parameter", lambda row: row.parameter.replace("_", " ")),
        Column("value", str, "Value", lambda row: ", ".join(row.values)),
    ],
    needs="a training that calls record_setup(...), or has a goal",
    takes=["run"],
)


class RecordRow(NamedTuple):
    result: CaseResult
    run: RunRecord

    @property
    def identity(self) -> Mapping[str, Scalar]:
        return {
            name: value
            for launch in self.result.launches
            for measurement in launch.measurements
            for name, value in measurement.identity.items()
        }

    @property
    def stated(self) -> Mapping[str, str]:
        return self.run.experiment.stated(self.result.case.test)

    def parameters(self, names: str) -> str:
        found = (f"{name}={value}" for name, value in self.result.case.params.items() if re.search(names, name))
        text = ", ".join(found)
        return text if "addresses" in self.run.settings else mask_addresses(text)


def _rows(results: Sequence[CaseResult], run: RunRecord | None = None) -> list[RecordRow]:
    return [] if run is None else [RecordRow(result, run) for result in results]


def _description(row: RecordRow) -> str:
    under = row.result.case.conditions
    backend = f", {under.backend}" if under.backend else ""
    ranks = f"{under.world_size} rank{'s' * (under.world_size != 1)}"
    return f"{ranks}{backend}, {under.launcher}"


def _workload(row: RecordRow) -> str:
    return " at ".join(filter(None, [row.result.nodeid, row.run.commit]))


def _servers(row: RecordRow) -> str:
    """Hosts: one, unless a launcher of ranks has them on others, or is not known here."""
    under = row.result.case.conditions
    if under.kind != RANKS:
        return "1"
    launcher = LAUNCHERS.get(under.launcher)
    return "1" if launcher is not None and launcher.hosts == "one" else ""


def _cluster_info(row: RecordRow) -> str:
    environment = row.result.environment
    cores = f"{environment.cores} cores"
    return ", ".join(filter(None, [environment.system.get("machine"), environment.device, cores]))


def _results(row: RecordRow) -> str:
    out = row.run.settings.get("out", "")
    return f"this run record{out and f'; logs in {out}/logs'}"


def _expected(row: RecordRow) -> str:
    """What its launches were compared with, if there was anything; a path of this machine would tell whose it is."""
    reference = row.result.reference
    if reference.kind == "stored" and reference.software:
        return f"baseline {row.result.environment.platform}/{row.result.case.folder}"
    return reference.name


def _schedule(row: RecordRow) -> str:
    jobs = (launch.elastic.job for launch in row.result.launches if launch.elastic is not None)
    return next((f"{job.nodes} nodes, {job.start} at the start, {job.plan}" for job in jobs), "")


class Field(NamedTuple):
    """What a report writes down of an experiment."""

    key: str
    heading: str
    known: Callable[[RecordRow], str] = lambda row: ""
    """What a run knows of itself where nothing was stated."""
    is_always_seen: bool = True
    """The fields of report 001; those of report 000 are seen where there is something to see."""

    def value(self, row: RecordRow) -> str:
        """What was stated; of the description with the case before it, of the summary with what became of the test."""
        stated, known = row.stated.get(self.key, ""), self.known(row)
        if self.key == "summary":
            return ". ".join(filter(None, [known, stated]))
        if self.key == "description":
            return f"{row.result.case.title}: {stated or known}"
        return stated or known

    def column(self) -> Column[RecordRow]:
        def cell(row: RecordRow) -> Cell:
            return Cell(self.value(row) or None, self.value(row) or "-")

        return Column(self.key, str, self.heading, cell, if_any=not self.is_always_seen)


FIELDS = (
    Field("description", "Description", _description),
    Field("storage", "Storage options", lambda row: str(row.identity.get("storage", ""))),
    Field("workload", "workload", _workload),
    Field("cluster", "Cluster", lambda row: row.result.environment.platform),
    Field("behind_gateway", "Behind a gateway"),
    Field("servers", "# of servers", _servers),
    Field("addresses", "IPs/DNS"),
    Field("cluster_info", "Pointer to cluster info", _cluster_info),
    Field("results", "Pointer to results", _results),
    Field("expected", "Expected results", _expected),
    Field("storage_config", "s3fs config"),
    Field("data_set", "input data set", lambda row: str(row.identity.get("data", ""))),
    Field("summary", "Brief summary and next steps", lambda row: row.result.headline or row.result.outcome),
    Field(
        "instance", "instance type", lambda row: row.result.environment.system.get("machine", ""), is_always_seen=False
    ),
    Field("schedule", "schedule", _schedule, is_always_seen=False),
    Field("warm_up", "warm-up", lambda row: row.parameters("warm_?up"), is_always_seen=False),
    Field("multipliers", "multipliers", lambda row: row.parameters("multipliers"), is_always_seen=False),
    Field("backup_dir", "backup folder", lambda row: row.parameters("backup|checkpoint_dir"), is_always_seen=False),
)
"""The time is the run's own; what was stated under other keys stands in a column of its own."""


def _other(row: RecordRow) -> str:
    headings = [field.key for field in FIELDS]
    return "; ".join(f"{key}: {value}" for key, value in row.stated.items() if key not in headings)


def _time(row: RecordRow) -> Cell:
    return Cell(row.run.started, f"{datetime.fromisoformat(row.run.started):%Y-%m-%d %H:%M:%S} GMT")


RECORD: TableKind[RecordRow] = TableKind(
    summary="Every case as an experiment: when, where, on what data, with which result.",
    rows=_rows,
    columns=[
        FIELDS[0].column(),
        Column("started", str, "Time (GMT)", _time),
        *(field.column() for field in FIELDS[1:]),
        Field("stated", "Also stated", _other, is_always_seen=False).column(),
    ],
    takes=["run"],
)
