"""The hosts of a launch's ranks without their names, which are stored only when they are asked for."""

from __future__ import annotations

from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult


def number_hosts(result: CaseResult) -> CaseResult:
    """The case with ``host0``, ``host1`` and so on in the place of names, in the order of the ranks."""
    return replace(result, launches=[_number(launch) for launch in result.launches])


def _number(launch: LaunchRecord) -> LaunchRecord:
    numbers = {name: f"host{number}" for number, name in enumerate(dict.fromkeys(launch.hosts))}
    return replace(launch, hosts=[numbers[name] for name in launch.hosts])
