"""What ran on what: launches, environment, and the record of an experiment.

An experiment is printed as the fourteen fields of report 001 and what report 000
writes down of a run. What was stated of a test (docs/files.md) counts; where nothing was, what the run knows of
itself stands there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from pytest_distbench.launch.starters import LAUNCHERS
from pytest_distbench.machine.hardware import mask_addresses
from pytest_distbench.records.case import RANKS
from pytest_distbench.records.environment import GpuHost
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.run import CaseResult, RunRecord
from pytest_distbench.report.tables.table import (
    LAUNCH,
    TEST,
    Cell,
    Column,
    OfLaunch,
    TableKind,
    num_bytes,
    number,
    rows_of_launches,
    seconds,
)
from pytest_distbench.units import counted, format_bytes


def _facts(results: Sequence[CaseResult], run: RunRecord | None = None) -> list[tuple[str, str, str]]:
    """Name, value and what is planned, each once, by their names in the order in which they are first told."""
    planned = {} if run is None else run.experiment.planned
    facts = (fact for result in results for fact in _facts_of(result).items())
    found = dict.fromkeys((name, value, planned.get(name, "")) for name, value in facts)
    names = list(dict.fromkeys(name for name, *_ in found))
    return sorted(found, key=lambda fact: names.index(fact[0]))


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


def _measured(result: CaseResult) -> list[Sample]:
    return [m for launch in result.launches for m in launch.measurements]


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
"""What report 001 writes down of an experiment."""

_HEADINGS_IF_ANY = {
    "instance": "instance type",
    "schedule": "schedule",
    "warm_up": "warm-up",
    "multipliers": "multipliers",
    "backup_dir": "backup folder",
    "stated": "Also stated",
}
"""What report 000 does; seen where there is something to see. The last has what was stated under other keys."""


def _record(result: CaseResult, run: RunRecord) -> dict[str, str]:
    """What was stated of a case, by key, else what the run knows of itself.

    The description has the case before it, the summary what became of the test; the time is the run's own.
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
    under, environment, reference = result.case.conditions, result.environment, result.reference
    identity = {name: value for m in _measured(result) for name, value in m.identity.items()}
    ranks, out = counted(under.world_size, "rank"), run.settings.get("out", "")
    machine = environment.system.get("machine", "")
    launcher = LAUNCHERS.get(under.launcher)
    on_one_host = under.kind != RANKS or (launcher is not None and launcher.hosts == "one")
    # A path of this machine would tell whose it is.
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
        "expected": stored if reference.kind == "stored" and reference.software else reference.name,
        "data_set": str(identity.get("data", "")),
        "summary": result.headline or result.outcome,
        "instance": machine,
        "schedule": next(plans, ""),
        "warm_up": parameters("warm_?up"),
        "multipliers": parameters("multipliers"),
        "backup_dir": parameters("backup|checkpoint_dir"),
    }


def _field(key: str, heading: str) -> Column[dict[str, str]]:
    def cell(row: dict[str, str]) -> Cell:
        text = f"{datetime.fromisoformat(row[key]):%Y-%m-%d %H:%M:%S} GMT" if key == "started" else row[key]
        return Cell(row[key] or None, text or "-")

    return Column(key, str, heading, cell, if_any=key in _HEADINGS_IF_ANY)


RECORD: TableKind[dict[str, str]] = TableKind(
    summary="Every case as an experiment: when, where, on what data, with which result.",
    rows=lambda results, run=None: [] if run is None else [_record(result, run) for result in results],
    columns=[_field(key, heading) for key, heading in {**_HEADINGS, **_HEADINGS_IF_ANY}.items()],
    takes=["run"],
)
