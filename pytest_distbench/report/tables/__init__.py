"""The tables that a run may have: a new table is one row.

In this module: verdicts, injected slowdowns, launches, environment, and the record of an experiment, which has the
fourteen fields of report 001 and those of report 000. What a test states (docs/files.md) counts; otherwise the run's
own knowledge is shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any

from pytest_distbench.errors import TableError, error_text
from pytest_distbench.extensions import Table
from pytest_distbench.judging.fingerprint_rule import communication_texts
from pytest_distbench.judging.outcome import injected_ratio
from pytest_distbench.judging.words import baseline, change, current, mde, metric_text, statistic_text, threshold
from pytest_distbench.launch.starters import LAUNCHERS
from pytest_distbench.machine.hardware import mask_addresses
from pytest_distbench.records.case import RANKS
from pytest_distbench.records.environment import GpuHost
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import FINGERPRINT, tightest
from pytest_distbench.records.reasons import severity_order
from pytest_distbench.records.run import CaseResult, Control, Finding, RunRecord, is_found
from pytest_distbench.report.tables.table import (
    LAUNCH,
    TEST,
    Cell,
    Column,
    DataTable,
    OfLaunch,
    TableKind,
    num_bytes,
    number,
    rows_of_launches,
    seconds,
)
from pytest_distbench.units import counted, format_bytes, format_change

OfCase = tuple[CaseResult, Finding]  # a row: a finding with its case


_TEST: Column[OfCase] = Column("test", str, "test", lambda row: Cell(row[0].nodeid, row[0].case.title))


def _slowdown(row: OfCase) -> Control:
    assert row[0].control is not None
    return row[0].control


def _change(ratio: float | None) -> Cell:
    return Cell(ratio, "-" if ratio is None else format_change(ratio))


CONTROL: TableKind[OfCase] = TableKind(
    summary="Injected slowdowns (positive control): which were detected.",
    rows=lambda results: [(r, v) for r in results if r.control is not None for v in r.control.verdicts],
    columns=[
        _TEST,
        Column("metric", str, "metric", lambda row: Cell(row[1].metric, metric_text(row[1]))),
        Column("injected", float, "injected", lambda row: _change(injected_ratio(_slowdown(row), row[1]))),
        Column("measured", float, "measured", lambda row: _change(row[1].ratio)),
        Column("detected", bool, "detected", lambda row: Cell(yes := is_found(row[1]), "yes" if yes else "no")),
        Column("step", str, "step", lambda row: _slowdown(row).step),
        Column("launches", int, "launches", lambda row: _slowdown(row).launches),
        Column("seconds", float, "time", lambda row: seconds(_slowdown(row).took_s)),
    ],
    needs="a run with --distbench-control",
)


COLUMNS: list[Column[Finding]] = [
    Column("metric", str, "metric", lambda v: Cell(v.metric, metric_text(v))),
    Column("unit", str, None, lambda v: v.unit),
    Column("current", float, "this run", lambda v: Cell(v.current, current(v))),
    Column("baseline", float, "baseline", lambda v: Cell(v.baseline, baseline(v))),
    Column("statistic", str, "judged by", lambda v: Cell(v.statistic if statistic_text(v) else "", statistic_text(v))),
    Column("ratio", float, "change", lambda v: Cell(v.ratio, change(v))),
    Column("threshold", float, "threshold", lambda v: Cell(v.threshold, threshold(v))),
    Column("mde", float, "detects from", lambda v: Cell(v.mde, mde(v))),
    Column("at_least", float, None, lambda v: tightest(v.bounds, "least")),
    Column("at_most", float, None, lambda v: tightest(v.bounds, "most")),
    Column("launches", int, "n", lambda v: Cell(v.launches, str(v.launches or ""))),
    Column("reason", str, None, lambda v: v.reason),
]
"""Columns of a verdict in every report: in a terminal, on a page, in a pull request and in a file."""


def _of_case(column: Column[Finding]) -> Column[OfCase]:
    """A column of findings as one of (case, finding); cells of a communication fingerprint show what is sent."""

    def cell(row: OfCase) -> object:
        if row[1].metric == FINGERPRINT and column.name in ("current", "baseline"):
            now, then = communication_texts(row[0])
            return Cell(None, now if column.name == "current" else then)
        return column.cell(row[1])

    return Column(column.name, column.type, column.heading if isinstance(column.heading, str) else None, cell)


def _rows(results: Sequence[CaseResult]) -> list[OfCase]:
    judged = [(result, v) for result in results for v in result.verdicts if v.is_judged]
    return sorted(judged, key=lambda row: severity_order(row[1].code))


VERDICTS: TableKind[OfCase] = TableKind(
    summary="Every judged metric.",
    rows=_rows,
    columns=[
        Column("verdict", str, "verdict", lambda row: row[1].kind),
        Column(  # of the reason, unless that only repeats the verdict
            "code", str, "reason", lambda row: Cell(c := row[1].code, "" if c.replace("-", " ") == row[1].kind else c)
        ),
        Column("test", str, "test", lambda row: Cell(row[0].nodeid, row[0].test_name)),
        *map(_of_case, COLUMNS),
    ],
)


def _facts(results: Sequence[CaseResult], run: RunRecord | None = None) -> list[tuple[str, str, str]]:
    """(name, value, planned value) of each fact on the environments of cases, such as ``torch``, each value once."""
    planned = {} if run is None else run.experiment.planned
    found: dict[str, dict[str, None]] = {}
    for environment in (result.environment for result in results):
        facts = {
            "platform": environment.platform,
            "device": environment.device,
            "cores": str(environment.cores),
            **({"host": "shared with other runs"} if environment.shares_host else {}),
            **environment.system,
            **environment.software,
            **environment.variables,
            **(_gpu_facts(environment.gpu_host) if environment.gpu_host is not None else {}),
        }
        for name, value in facts.items():
            found.setdefault(name, {})[value] = None
    return [(name, value, planned.get(name, "")) for name, values in found.items() for value in values]


def _gpu_facts(host: GpuHost) -> dict[str, str]:
    facts = {"host CPU": host.cpu, "newest CUDA of the driver": host.cuda}
    for rank, gpu in enumerate(host.gpus):
        limit = "" if gpu.power_limit_w is None else f"{gpu.power_limit_w:.0f} W"
        switches = {"ECC": gpu.ecc, "persistence": gpu.persistence}
        modes = [f"{name} {'on' if is_on else 'off'}" for name, is_on in switches.items() if is_on is not None]
        memory = "" if gpu.memory_bytes is None else format_bytes(gpu.memory_bytes)
        pcie = f"PCIe {gpu.pcie}" if gpu.pcie else ""
        facts[gpu.label] = ", ".join(filter(None, [gpu.name, memory, limit, pcie, *modes, gpu.uuid]))
        if host.links:
            joined = (f"{host.gpus[other].label} {link}" for other, link in enumerate(host.links[rank]) if link)
            facts[f"links of {gpu.label}"] = ", ".join(joined)
    facts |= {"not used": "; ".join(host.unreadable)} if host.unreadable else {}
    return facts


ENVIRONMENT: TableKind[tuple[str, str, str]] = TableKind(
    summary="What the cases ran on.",
    rows=_facts,
    columns=[
        Column("name", str, "Stack", lambda fact: fact[0]),
        Column("value", str, "current", lambda fact: fact[1]),
        Column("planned", str, "Future", lambda fact: fact[2], if_any=True),
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
        Column("peak_memory_bytes", int, "memory", lambda row: num_bytes(row.launch.peak_memory_bytes, nothing="-")),
        Column("foreign_cores", float, "cores of others", lambda row: number(row.launch.foreign_cores, ".2f")),
        Column("reason", str, "reason", lambda row: Cell(row.launch.reason, row.launch.reason.partition("\n")[0])),
    ],
)


_HEADINGS = {
    "description": "Description",
    "started": "Time (GMT)",
    "storage": "Storage options",
    "workload": "workload",
    "cluster": "Cluster",
    "behind_gateway": "Behind a gateway",
    "servers": "# of servers",
    "addresses": "IPs/DNS",
    "cluster_info": "Pointer to cluster info",
    "results": "Pointer to results",
    "expected": "Expected results",
    "storage_config": "s3fs config",
    "data_set": "input data set",
    "summary": "Brief summary and next steps",
}
"""Fields of an experiment in report 001."""

_HEADINGS_IF_ANY = {
    "instance": "instance type",
    "schedule": "schedule",
    "warm_up": "warm-up",
    "multipliers": "multipliers",
    "backup_dir": "backup folder",
    "stated": "Also stated",
}
"""Fields of an experiment in report 000, shown if not empty. The last has what was stated under other keys."""


def _record(result: CaseResult, run: RunRecord) -> dict[str, str]:
    """What was stated about a case, by key, else what the run knows itself.

    ``description`` begins with the case, ``summary`` with the outcome of the test; ``started`` is the run's own.
    """
    stated, known = run.experiment.stated(result.case.test), _known(result, run)
    keys = [*_HEADINGS, *_HEADINGS_IF_ANY]
    return {
        **{key: stated.get(key, "") or known.get(key, "") for key in keys},
        "description": f"{result.case.title}: {stated.get('description', '') or known['description']}",
        "started": known["started"],
        "summary": ". ".join(filter(None, [known["summary"], stated.get("summary", "")])),
        "stated": "; ".join(f"{key}: {value}" for key, value in stated.items() if key not in keys),
    }


def _known(result: CaseResult, run: RunRecord) -> dict[str, str]:
    under, environment, baseline = result.case.conditions, result.environment, result.reference
    measured = (m for launch in result.launches for m in launch.measurements)
    identity = {name: value for m in measured for name, value in m.identity.items()}
    ranks, out = counted(under.world_size, "rank"), run.settings.get("out", "")
    machine = environment.system.get("machine", "")
    launcher = LAUNCHERS.get(under.launcher)
    on_one_host = under.kind != RANKS or (launcher is not None and launcher.hosts == "one")
    # A path of this machine would name its owner.
    stored = f"baseline {environment.platform}/{result.case.folder}"
    plans = (event.schedule for launch in result.launches for event in launch.events if "schedule" in event.facts)
    hide = str if "addresses" in run.settings else mask_addresses

    def parameters(names: str) -> str:
        found = (f"{name}={value}" for name, value in result.case.params.items() if re.search(names, name))
        return hide(", ".join(found))

    return {
        "description": ", ".join(filter(None, [ranks, under.backend, under.launcher])),
        "started": run.started,
        "storage": str(identity.get("storage", "")),
        "workload": " at ".join(filter(None, [result.nodeid, run.commit])),
        "cluster": environment.platform,
        "servers": "1" if on_one_host else "",
        "cluster_info": ", ".join(filter(None, [machine, environment.device, f"{environment.cores} cores"])),
        "results": f"this run record{out and f'; logs in {out}/logs'}",
        "expected": stored if baseline.kind == "stored" and baseline.software else baseline.name,
        "data_set": str(identity.get("data", "")),
        "summary": result.headline or result.outcome,
        "instance": machine,
        "schedule": next(plans, ""),
        "warm_up": parameters("warm_?up"),
        "multipliers": parameters("multipliers"),
        "backup_dir": parameters("backup|checkpoint_dir"),
    }


def _stated(row: dict[str, str], key: str) -> Cell:
    text = f"{datetime.fromisoformat(row[key]):%Y-%m-%d %H:%M:%S} GMT" if key == "started" else row[key]
    return Cell(row[key] or None, text or "-")


RECORD: TableKind[dict[str, str]] = TableKind(
    summary="Every case as an experiment: when, where, on what data, with which result.",
    rows=lambda results, run=None: [] if run is None else [_record(result, run) for result in results],
    columns=[
        Column(key, str, heading, partial(_stated, key=key), if_any=key in _HEADINGS_IF_ANY)
        for key, heading in {**_HEADINGS, **_HEADINGS_IF_ANY}.items()
    ],
    takes=["run"],
)


TABLES: Table[str, TableKind[Any]] = Table(
    "tables",
    {
        "verdicts": VERDICTS,
        "control": CONTROL,
        "record": RECORD,
        "environment": ENVIRONMENT,
        "launches": LAUNCHES,
    },
)
"""Tables by the name that ``--table`` takes."""


def table_of(name: str, record: RunRecord, given: Mapping[str, object] = MappingProxyType({})) -> DataTable:
    """One table of a run; without rows if the run does not have it.

    Args:
        given: further arguments from the user, by the names that tables take.

    Raises:
        TableError: it cannot be made.
    """
    try:
        return TABLES[name].table(record.results, {**given, "run": record})
    except Exception as error:
        reason = str(error) if isinstance(error, TableError) else error_text(error)
        raise TableError(f"the table {name!r} cannot be made: {reason}") from error


def tables_of(
    record: RunRecord, given: Mapping[str, object] = MappingProxyType({})
) -> tuple[dict[str, DataTable], list[TableError]]:
    """The tables of a run that have rows, and errors of those that cannot be made."""
    tables, errors = {}, []
    for name in TABLES:
        try:
            if (table := table_of(name, record, given)).rows:
                tables[name] = table
        except TableError as error:
            errors.append(error)
    return tables, errors
