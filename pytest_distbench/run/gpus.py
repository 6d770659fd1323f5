"""How busy GPUs and CPUs are while ranks run on them: looked at from pytest's process, so that no rank does it.

After a failure the memory of the GPUs is awaited.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from pytest_distbench.launch.starters import Hosting
from pytest_distbench.machine.gpu_watch import PATIENCE_S, GpuWatch, await_memory, complaint, held_remark
from pytest_distbench.machine.gpus import Gpus, misplaced, peak_bytes_per_s
from pytest_distbench.records.environment import GpuWitness
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import LINK_PEAK, Measurement
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.record import replace
from pytest_distbench.run.kinds import Around, Witness
from pytest_distbench.units import GIGABYTE
from pytest_distbench.worker.load import busy_s, usable_cpus

_FIRST_PAUSE_S = 0.125
"""Between two looks; the system counts in ticks of 0.01 s."""
_MOST_LOOKS = 200
"""About so many of a launch are kept, however long it takes."""


@dataclass(frozen=True, slots=True)
class Course(Witness):
    """Of one launch: seconds since it began -> share of the CPUs that was busy since the look before."""

    looks: list[tuple[float, float]] = field(default_factory=list)

    def describe(self, record: LaunchRecord) -> LaunchRecord:
        return replace(record, cpu_course=self.looks)


class UtilisationAround(Around):
    def __init__(
        self, now: Callable[[], float] = time.monotonic, busy: Callable[[], float] = lambda: busy_s(usable_cpus())[0]
    ) -> None:
        self._now = now
        self._busy = busy

    @contextlib.contextmanager
    def during(self, plan: LaunchPlan, hosting: Hosting) -> Iterator[Course]:
        del plan
        course = Course()
        if hosting.hosts != "one":
            yield course
            return
        is_over = threading.Event()
        thread = threading.Thread(
            target=lambda: course.looks.extend(self.looks(is_over.wait)), name="distbench-cpus", daemon=True
        )
        thread.start()
        try:
            yield course
        finally:
            is_over.set()
            thread.join()

    def looks(self, wait: Callable[[float], bool]) -> Iterator[tuple[float, float]]:
        """Until waiting says that it is over: a moment, and the share that was busy since the one before."""
        cpus = len(usable_cpus() or ()) or os.cpu_count() or 1
        start = last = self._now()
        before = self._busy()
        is_over = False
        while not is_over:
            is_over = wait(max(_FIRST_PAUSE_S, (last - start) / (_MOST_LOOKS / 4)))
            now, busy = self._now(), self._busy()
            if now - last >= _FIRST_PAUSE_S / 2:
                yield round(now - start, 3), round(min(1.0, (busy - before) / ((now - last) * cpus)), 3)
                last, before = now, busy


_MARGIN_S = 1.0
"""To tell of a launch before somebody else ends its test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched(Witness):
    """What was seen of the GPUs around one launch, or one pair of launches.

    Witnesses, how each GPU fared, are there when the launch is over. Memory was in use before it, by the label of the
    GPU; that of ended ranks is awaited for the seconds of patience.
    """

    plan: LaunchPlan
    gpus: Gpus
    watch: GpuWatch | None = None
    witnesses: list[GpuWitness] = field(default_factory=list)
    memory: Mapping[str, int] = field(default_factory=dict)
    patience_s: float
    on_progress: Callable[[str], None]

    def describe(self, record: LaunchRecord) -> LaunchRecord:
        """A launch with what no rank knows: how its GPUs fared, and the driver.

        It comes back when a launch that failed has given its memory back.
        """
        driver = self.gpus.driver
        software = {**record.software, "driver": driver} if record.software and driver else record.software
        leased = [self.gpus.visible[device] for device in devices(self.gpus, len(record.gpus))]
        remarks = [*record.remarks, *filter(None, [misplaced(leased, record.gpus)])]
        if record.outcome == "failed" and self.watch is not None:
            remarks += self._after_failure(self.watch)
        measurements = self._with_link_peak(record.measurements)
        return replace(
            record, gpu_witnesses=self.witnesses, software=software, remarks=remarks, measurements=measurements
        )

    def _after_failure(self, watch: GpuWatch) -> list[str]:
        """What became of the GPUs, and of the memory on them that the ranks held: a remark on each that is not well."""
        self.on_progress("waiting for the memory of GPUs")
        patience_s = self.patience_s
        if self.plan.test_ends_at is not None:
            patience_s = max(0.0, min(patience_s, self.plan.test_ends_at - time.monotonic() - _MARGIN_S))
        held = await_memory(lambda: watch.memory_in_use(self.plan.world_size), self.memory, patience_s=patience_s)
        kept = [held_remark(gpu, missing, watch.users(gpu), patience_s=patience_s) for gpu, missing in held.items()]
        return [*filter(None, [complaint()]), *kept]

    def _with_link_peak(self, measurements: list[Measurement]) -> list[Measurement]:
        """What was measured; the times of collectives with the peak of the links that they went over, where known."""
        ranks = self.gpus.visible[: self.plan.world_size]
        is_joined = self.watch is not None and len(ranks) == self.plan.world_size
        peak = peak_bytes_per_s(ranks, self.gpus.links) if is_joined and not self.plan.shares_gpu else None
        if peak is None:
            return measurements
        return [
            replace(m, facts={**m.facts, LINK_PEAK: peak / GIGABYTE}) if "busbw_factor" in m.facts else m
            for m in measurements
        ]


def devices(gpus: Gpus, world_size: int) -> list[int]:
    """CUDA device of each rank: one of its own, or shared evenly; none on the CPU."""
    count = len(gpus.visible)
    return [rank % count for rank in range(world_size)] if count else []


class GpusAround(Around):
    def __init__(self, gpus: Gpus, *, on_progress: Callable[[str], None], patience_s: float = PATIENCE_S) -> None:
        self._gpus = gpus
        self._on_progress = on_progress
        self._patience_s = patience_s
        self._watch: GpuWatch | None = None

    @contextlib.contextmanager
    def during(self, plan: LaunchPlan, hosting: Hosting) -> Iterator[Watched]:
        unseen = Watched(plan=plan, gpus=self._gpus, patience_s=self._patience_s, on_progress=self._on_progress)
        if plan.device != "cuda" or not self._gpus.visible or hosting.hosts == "many":
            yield unseen
            return
        if self._watch is None:
            self._watch = GpuWatch(self._gpus.visible)
        memory = self._watch.memory_in_use(plan.world_size)
        with self._watch.during(plan.world_size) as witnesses:
            yield dataclasses.replace(unseen, watch=self._watch, witnesses=witnesses, memory=memory)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
