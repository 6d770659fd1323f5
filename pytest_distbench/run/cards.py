"""The GPUs of a run's launches: watched while ranks run on them, their memory awaited after a failure."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from pytest_distbench.errors import LauncherError
from pytest_distbench.machine.gpu_watch import PATIENCE_S, GpuWatch, await_memory, held_remark
from pytest_distbench.machine.gpus import Gpus, misplaced
from pytest_distbench.machine.links import peak_bytes_per_s
from pytest_distbench.records.gpu import GpuWitness
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import LINK_PEAK, Measurement
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.record import replace
from pytest_distbench.units import GIGABYTE

_MARGIN_S = 1.0
"""To tell of a launch before somebody else ends its test."""


@dataclass(frozen=True)
class Watched:
    """What was seen around one launch, or one pair of launches.

    Attributes:
        witnesses: how each GPU fared; filled when the launch is over.
        memory: bytes in use before it, by the label of the GPU.
    """

    witnesses: list[GpuWitness] = field(default_factory=list)
    memory: Mapping[str, int] = field(default_factory=dict)


class Cards:
    """The GPUs that a run has, as far as they are in sight.

    Args:
        gpus: what the driver shows; none where the run is on the CPU.
        are_here: the launcher starts ranks on this host.
        patience_s: seconds for which the memory of ended ranks is awaited.
    """

    def __init__(self, gpus: Gpus, *, are_here: bool, patience_s: float = PATIENCE_S) -> None:
        self._gpus = gpus
        self._are_here = are_here
        self._patience_s = patience_s
        self._watch: GpuWatch | None = None

    def devices(self, world_size: int) -> list[int]:
        """CUDA device of each rank: one of its own, or shared evenly."""
        count = len(self._gpus.visible)
        return [rank % count for rank in range(world_size)] if count else []

    @contextlib.contextmanager
    def during(self, plan: LaunchPlan) -> Iterator[Watched]:
        """Look at the GPUs of a launch while it runs; those of other hosts are out of sight.

        Raises:
            LauncherError: one of them is gone.
        """
        if plan.device != "cuda" or not self._gpus.visible or not self._are_here:
            yield Watched()
            return
        if self._watch is None:
            self._watch = GpuWatch(self._gpus.visible)
        if vanished := self._watch.vanished(plan.world_size):
            raise LauncherError(vanished)
        memory = self._watch.memory_in_use(plan.world_size)
        with self._watch.during(plan.world_size) as witnesses:
            yield Watched(witnesses, memory)

    def describe(
        self, record: LaunchRecord, watched: Watched, plan: LaunchPlan, on_progress: Callable[[str], None]
    ) -> LaunchRecord:
        """A launch with what no rank knows: how its GPUs fared, and the driver.

        It comes back when a launch that failed has given its memory back.
        """
        driver = self._gpus.driver
        software = {**record.software, "driver": driver} if record.software and driver else record.software
        leased = [self._gpus.visible[device] for device in self.devices(len(record.gpus))]
        remarks = [*record.remarks, *filter(None, [misplaced(leased, record.gpus)])]
        if record.outcome == "failed" and self._watch is not None and (gone := self._watch.vanished(plan.world_size)):
            remarks.append(gone)
        elif record.outcome == "failed" and watched.memory:
            on_progress("waiting for the memory of GPUs")
            remarks += self._await_memory(watched.memory, plan)
        measurements = self._with_link_peak(record.measurements, plan)
        return replace(
            record, gpu_witnesses=watched.witnesses, software=software, remarks=remarks, measurements=measurements
        )

    def _with_link_peak(self, measurements: list[Measurement], plan: LaunchPlan) -> list[Measurement]:
        """What was measured; the times of collectives with the peak of the links that they went over, where known."""
        ranks = self._gpus.visible[: plan.world_size]
        is_joined = plan.device == "cuda" and self._are_here and len(ranks) == plan.world_size
        peak = peak_bytes_per_s(ranks, self._gpus.links) if is_joined and not plan.shares_gpu else None
        if peak is None:
            return measurements
        return [
            replace(m, facts={**m.facts, LINK_PEAK: peak / GIGABYTE}) if "busbw_factor" in m.facts else m
            for m in measurements
        ]

    def _await_memory(self, before: Mapping[str, int], plan: LaunchPlan) -> list[str]:
        """Wait until what the ranks held is free again. Returns a remark for each GPU where it is not."""
        assert self._watch is not None
        watch, patience_s = self._watch, self._patience_s
        if plan.test_ends_at is not None:
            patience_s = max(0.0, min(patience_s, plan.test_ends_at - time.monotonic() - _MARGIN_S))
        held = await_memory(lambda: watch.memory_in_use(plan.world_size), before, patience_s=patience_s)
        return [held_remark(gpu, missing, watch.users(gpu), patience_s=patience_s) for gpu, missing in held.items()]

    def close(self) -> None:
        """Let go of the driver."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
