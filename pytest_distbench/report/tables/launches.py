"""What ran, and on what: the tables of launches and of the environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pytest_distbench.records.gpu import GpuHost
from pytest_distbench.records.launch import LaunchRecord
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
    """One thing that is so, and what is planned for it."""

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


def names_of_facts(results: Sequence[CaseResult]) -> list[str]:
    """What the table environment has of these cases, by name."""
    return list(dict.fromkeys(fact.name for fact in _facts(results)))


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
    summary="What the cases ran on; more than one value where they differ. *Future*: what the experiment file plans.",
    rows=_facts,
    columns=[
        Column("name", str, "Stack", lambda fact: fact.name),
        Column("value", str, "current", lambda fact: fact.value),
        Column("planned", str, lambda facts: "Future" if any(f.planned for f in facts) else None, lambda f: f.planned),
    ],
    takes=["run"],
)


LAUNCHES: TableKind[OfLaunch[LaunchRecord]] = TableKind(
    summary="Every process group that was started: how it ended, how long it took, what it used.",
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
