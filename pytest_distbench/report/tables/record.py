"""The record of an experiment: the fourteen fields of report 001, and what report 000 writes down of a run.

What was stated of a test (docs/experiment.md) counts; where nothing was, what the run knows of itself stands there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from pytest_distbench.launch.starters.table import LAUNCHERS
from pytest_distbench.machine.addresses import mask_addresses
from pytest_distbench.records.case import RANKS
from pytest_distbench.records.experiment import FIELDS
from pytest_distbench.records.metric import Scalar
from pytest_distbench.records.run import CaseResult, RunRecord
from pytest_distbench.report.tables.table import Cell, Column, TableKind

_OF_REPORT_001 = 13
"""So many of the fields are report 001's; people always see these, and the others where there is one."""


class RecordRow(NamedTuple):
    """One case as an experiment."""

    result: CaseResult
    run: RunRecord

    @property
    def identity(self) -> Mapping[str, Scalar]:
        """What defines its numbers, all of them together."""
        return {
            name: value
            for launch in self.result.launches
            for measurement in launch.measurements
            for name, value in measurement.identity.items()
        }

    def parameters(self, names: str) -> str:
        """Those of its parameters whose name has this in it, with their values."""
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
    logs = row.run.settings.get("logs", "")
    return f"this run record{logs and f'; logs in {logs}'}"


def _expected(row: RecordRow) -> str:
    """What its launches were compared with, if there was anything; a path of this machine would tell whose it is."""
    reference = row.result.reference
    if reference.kind == "stored" and reference.software:
        return f"baseline {row.result.environment.platform}/{row.result.case.folder}"
    return reference.name


def _summary(row: RecordRow) -> str:
    return row.result.headline or row.result.outcome


def _schedule(row: RecordRow) -> str:
    jobs = (launch.elastic.job for launch in row.result.launches if launch.elastic is not None)
    return next((f"{job.nodes} nodes, {job.start} at the start, {job.plan}" for job in jobs), "")


_KNOWN: Mapping[str, Callable[[RecordRow], str]] = {
    "description": _description,
    "storage": lambda row: str(row.identity.get("storage", "")),
    "workload": _workload,
    "cluster": lambda row: row.result.environment.platform,
    "servers": _servers,
    "cluster_info": _cluster_info,
    "results": _results,
    "expected": _expected,
    "data_set": lambda row: str(row.identity.get("data", "")),
    "summary": _summary,
    "instance": lambda row: row.result.environment.system.get("machine", ""),
    "schedule": _schedule,
    "warm_up": lambda row: row.parameters("warm_?up"),
    "multipliers": lambda row: row.parameters("multipliers"),
    "backup_dir": lambda row: row.parameters("backup|checkpoint_dir"),
}
"""What a run knows of itself, by the keys of :data:`FIELDS`."""


def _value(key: str, row: RecordRow) -> str:
    """What was stated; of the description with the case before it, of the summary with what became of the test."""
    stated = row.run.experiment.stated(row.result.case.test).get(key, "")
    known = _KNOWN[key](row) if key in _KNOWN else ""
    if key == "summary":
        return ". ".join(filter(None, [known, stated]))
    if key == "description":
        return f"{row.result.case.title}: {stated or known}"
    return stated or known


def _column(key: str, *, is_always_seen: bool) -> Column[RecordRow]:
    def heading(rows: Sequence[RecordRow]) -> str | None:
        return FIELDS[key] if is_always_seen or any(_value(key, row) for row in rows) else None

    def cell(row: RecordRow) -> Cell:
        value = _value(key, row)
        return Cell(value or None, value or "-")

    return Column(key, str, heading, cell)


def _time(row: RecordRow) -> Cell:
    return Cell(row.run.started, f"{datetime.fromisoformat(row.run.started):%Y-%m-%d %H:%M:%S} GMT")


def _columns() -> list[Column[RecordRow]]:
    columns = [_column(key, is_always_seen=place < _OF_REPORT_001) for place, key in enumerate(FIELDS)]
    return [columns[0], Column("started", str, "Time (GMT)", _time), *columns[1:]]


RECORD: TableKind[RecordRow] = TableKind(
    summary="Every case as an experiment: when, where, on what data, with which result; what was stated, else known.",
    rows=_rows,
    columns=_columns(),
    takes=["run"],
)
