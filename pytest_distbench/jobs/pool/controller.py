"""The controller of a pool: shares slots out among jobs and a serving, until all jobs have ended.

``python -m pytest_distbench.jobs.pool.controller PLAN`` runs it; each job has an engine of its own.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from pytest_distbench.jobs.engines.contract import CannotGoOn, EngineSetup
from pytest_distbench.jobs.engines.table import ENGINES
from pytest_distbench.jobs.pool.allocation import decide
from pytest_distbench.jobs.pool.job import SharingJob
from pytest_distbench.jobs.pool.servers import ServerProcesses, Servers
from pytest_distbench.launch.starters import forkserver
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.pool import SERVING, Sharing
from pytest_distbench.records.pool_timeline import (
    POOL_LINES,
    Asked,
    ClockBegan,
    Demanded,
    Ended,
    Freed,
    Granted,
    PoolLine,
    ServerFailed,
    ServerReady,
    Submitted,
)
from pytest_distbench.records.timeline import LineReader, append
from pytest_distbench.records.work import Pool

_LOOK_S = 0.02


class PoolController:
    """A pool from start to end."""

    def __init__(
        self,
        pool: Sharing,
        jobs: Sequence[SharingJob],
        timeline: Path,
        *,
        servers: Servers | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._pool = pool
        self._jobs = jobs
        self._path = timeline
        self._reader = LineReader(timeline, POOL_LINES)
        self._servers = servers
        self._clock = clock
        self._sleep = sleep
        self._submitted: list[SharingJob] = []
        self._began: float | None = None
        self._serving: set[int] = set()
        """Slots of the servers there should be."""
        self._ready: set[int] = set()
        """Those of them whose server is ready."""
        self._stopping: set[int] = set()
        self._demands = 0
        """That have come."""
        self._wanted = 0
        """Slots, by the demand there is."""

    def run(self) -> None:
        """Run all jobs, until the demand has come to its end."""
        try:
            while not self._is_over():
                self._look()
                self._submit()
                self._demand()
                self._share()
                self._sleep(_LOOK_S)
        finally:
            for job in self._jobs:
                job.close()
            if self._servers is not None:
                self._servers.close()

    def _is_over(self) -> bool:
        """Whether all jobs have ended, the demand has come to its end, and no server loads."""
        if len(self._submitted) < len(self._jobs) or not all(job.has_ended for job in self._jobs):
            return False
        self._check_demand()
        return self._serving <= self._ready

    def _look(self) -> None:
        for job in self._submitted:
            if job.has_ended:
                continue
            for slot in sorted(job.look()):
                self._note(Freed(t=self._clock(), owner=job.name, slot=slot))
            if job.has_ended:
                self._note(Ended(t=self._clock(), job=job.name))
        if self._servers is not None:
            self._look_at_servers(self._servers)

    def _look_at_servers(self, servers: Servers) -> None:
        for line in self._reader.read():
            if isinstance(line, ServerReady):
                self._ready.add(line.slot)
            if isinstance(line, ServerFailed):
                raise CannotGoOn(f"the serving failed in slot {line.slot}: {line.error}")
        for slot, code in servers.poll().items():
            if slot not in self._stopping:
                raise CannotGoOn(
                    f"the server in slot {slot} ended with exit code {code}; its log:\n{servers.log(slot)}"
                )
            self._stopping.discard(slot)
            self._note(Freed(t=self._clock(), owner=SERVING, slot=slot))

    def _submit(self) -> None:
        if self._began is None and self._submitted and (first := self._submitted[0].first_step_t) is not None:
            self._began = first
            self._note(ClockBegan(t=first))
        for job in self._jobs[len(self._submitted) :]:
            if job.submit_s > 0 and self._seconds() < job.submit_s:
                return
            self._submitted.append(job)
            self._note(Submitted(t=self._clock(), job=job.name))

    def _seconds(self) -> float:
        """By the pool's clock; it stands at 0 until the first step."""
        return 0.0 if self._began is None else self._clock() - self._began

    def _demand(self) -> None:
        serving = self._pool.serving
        if serving is None or self._began is None:
            return
        for demand in serving.demand[self._demands :]:
            if self._seconds() < demand.at_s:
                return
            self._demands += 1
            self._wanted = demand.slots
            self._note(Demanded(t=self._clock(), slots=demand.slots))

    def _share(self) -> None:
        here = [job for job in self._submitted if not job.has_ended]
        coming = {slot for job in here for slot in job.leaving} | self._stopping
        held = {slot for job in here for slot in job.slots} | self._serving
        decision = decide(
            self._pool.policy,
            [job.holder for job in here],
            free=set(range(self._pool.slots)) - coming - held,
            coming=len(coming),
            servers=self._serving,
            wanted=self._wanted if self._serving <= self._ready else max(self._wanted, len(self._serving)),
        )
        for owner in [SERVING, *(job.name for job in here)]:
            if asks := [slot for name, slot in decision.asks if name == owner]:
                self._ask(owner, asks)
            if grants := [slot for name, slot in decision.grants if name == owner]:
                self._grant(owner, grants)
        if self._is_at_rest and not (coming or decision.asks or decision.grants):
            for job in here:
                if job.holder.is_stable:
                    job.let_end()

    @property
    def _is_at_rest(self) -> bool:
        """Whether no demand is to come that would move slots, and no server loads that has to go."""
        serving = self._pool.serving
        return serving is not None and self._demands == len(serving.demand) and self._serving <= self._ready

    def _ask(self, owner: str, slots: Sequence[int]) -> None:
        for slot in slots:
            self._note(Asked(t=self._clock(), owner=owner, slot=slot))
        if owner != SERVING:
            self._job(owner).give_back(slots)
            return
        assert self._servers is not None
        for slot in slots:
            self._serving.discard(slot)
            self._ready.discard(slot)
            self._stopping.add(slot)
            self._servers.stop(slot)

    def _grant(self, owner: str, slots: Sequence[int]) -> None:
        for slot in slots:
            self._note(Granted(t=self._clock(), owner=owner, slot=slot))
        if owner != SERVING:
            self._job(owner).take(slots)
            return
        assert self._servers is not None
        for slot in slots:
            self._serving.add(slot)
            self._servers.start(slot)

    def _job(self, name: str) -> SharingJob:
        return next(job for job in self._jobs if job.name == name)

    def _check_demand(self) -> None:
        serving = self._pool.serving
        if serving is not None and self._demands < len(serving.demand):
            last = serving.demand[-1]
            raise CannotGoOn(
                f"the training was over after {self._seconds():.1f} s, and the demand goes on until {last.at_s:g} s: "
                "what it was run for has not happened. Train longer, or shorten the demand"
            )

    def _note(self, line: PoolLine) -> None:
        append(self._path, line)


def main(path: str) -> int:
    """Run the pool of a plan. Returns the exit code; why it is not 0 is in a file of the launch."""
    plan = LaunchPlan.read_from(path)
    pool = plan.expect(Pool).sharing
    variables = dict(os.environ)
    jobs = []
    for index, wanted in enumerate(pool.jobs):
        part = plan.of_job(index)
        part.files.checkpoints.mkdir(parents=True, exist_ok=True)
        part.files.plan.touch(mode=0o600)
        part.files.plan.write_bytes(msgspec.json.encode(part))
        setup = EngineSetup(job=wanted.job, files=part.files, variables=variables, projects=plan.preload)
        engine = ENGINES[wanted.job.engine].make(setup)
        jobs.append(SharingJob(wanted, engine, part.files.timeline))
    servers = None if pool.serving is None else ServerProcesses(plan.files, variables=variables)
    try:
        PoolController(pool, jobs, plan.files.pool_timeline, servers=servers).run()
    except CannotGoOn as error:
        plan.files.trouble.write_text(str(error))
        return 1
    finally:
        forkserver.let_helpers_end()
    return 0


if __name__ == "__main__":
    os._exit(main(sys.argv[1]))  # finalising the threads of the stores is nobody's business
