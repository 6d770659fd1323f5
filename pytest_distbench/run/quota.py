"""Launches whose ranks have a CPU quota: a control group for each, from before they start until they have ended."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_distbench.launch.starters.table import Hosting
from pytest_distbench.machine.control_groups import find_controller, remove, throttled
from pytest_distbench.records.case import CPUS
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import CPU_THROTTLED, Measurement
from pytest_distbench.records.plan import LaunchPlan, LaunchRequest
from pytest_distbench.records.record import replace


@dataclass(frozen=True, slots=True)
class Limited:
    """One launch, or one pair of launches: how often the quota stopped each rank, and the groups that could not go."""

    throttled: list[float] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def describe(self, record: LaunchRecord) -> LaunchRecord:
        """With whether the quota bit, of the rank that it stopped most seldom: information."""
        told = [f"{group} is still there: a process that its rank has started did not end" for group in self.left]
        record = replace(record, remarks=[*record.remarks, *told])
        if not self.throttled or record.outcome != "passed":
            return record
        bit = Measurement(
            name=CPU_THROTTLED,
            unit="",
            better="info",
            value=min(self.throttled),
            ranks=len(self.throttled),
            reduce="min",
        )
        return replace(record, measurements=[*record.measurements, bit])


class QuotaAround:
    """The control groups of each launch."""

    @contextlib.contextmanager
    def during(self, plan: LaunchPlan, hosting: Hosting) -> Iterator[Limited]:
        """Make the groups that the plan names, and remove them.

        The sides of a pair have them in common, rank by rank: they take turns.

        Raises:
            AroundUnavailable: they cannot be made here.
        """
        del hosting
        seen = Limited()
        with contextlib.ExitStack() as stack:
            if plan.cpus is not None and plan.cpu_groups:
                controller = find_controller()
                controller.remove_stale()
                for group in map(Path, plan.cpu_groups):
                    stack.callback(_take_away, group, seen)
                    controller.make(group, plan.cpus)
            yield seen

    def conditions(self, request: LaunchRequest) -> Mapping[str, str]:
        """The cores that each rank may use."""
        return {} if request.cpus is None else {CPUS: f"{request.cpus:g}"}

    def close(self) -> None:
        """It holds nothing."""


def _take_away(group: Path, seen: Limited) -> None:
    """Remove a group; what there is to tell of it is seen."""
    with contextlib.suppress(OSError):  # it could not be made
        seen.throttled.append(throttled(group))
    if not remove(group):
        seen.left.append(str(group))


def rank_groups(request: LaunchRequest, hosting: Hosting) -> list[str]:
    """The control group of each rank of a launch; none without a quota, and for ranks that are made up.

    Raises:
        AroundUnavailable: this system has none.
    """
    if request.cpus is None or hosting.hosts == "none":
        return []
    controller = find_controller()
    return [str(controller.group(rank)) for rank in range(request.work.processes(request.world_size))]
