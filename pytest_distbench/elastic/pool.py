"""A pool of jobs: its policies, which assign slots, and its controller, which applies them until all jobs have ended.

``python -m pytest_distbench.elastic.pool PLAN`` runs it; each job has an engine of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from pytest_distbench.elastic.controller import RunningJob, run_controller
from pytest_distbench.elastic.engines import ENGINES, CannotGoOn, Engine
from pytest_distbench.elastic.progress import EXIT_S
from pytest_distbench.elastic.records import (
    SERVING,
    START,
    Change,
    ChangeKind,
    ElasticJob,
    Policy,
    Pool,
    Sharing,
    event,
)
from pytest_distbench.launch.workplace import tail
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.wire import EventReader, append

Moves = list[tuple[str, int]]  # slots, each with the owner that gets it, or that is to give it back


def decide(
    policy: Policy,
    jobs: Sequence[SharingJob],
    *,
    free: Collection[int],
    coming: int = 0,
    servers: Collection[int] = (),
    wanted: int = 0,
) -> tuple[Moves, Moves]:
    """Assign slots: return those to grant now, and those to ask back.

    ``jobs`` are in the order of submission, and none passes the one before it. ``coming`` slots were asked back and are
    still in use. The serving has priority over all jobs: it has the slots ``servers``, and should have ``wanted`` of
    them.
    """
    grants: Moves = []
    asks: Moves = []
    left = sorted(free)
    if policy == "gang":
        _start(grants, jobs, left, fewest={job.name: job.most for job in jobs})
        return grants, asks
    missing = wanted - len(servers)
    if missing < 0:
        asks += [(SERVING, slot) for slot in sorted(servers)[missing:]]
    granted = [left.pop(0) for _ in range(min(max(0, missing), len(left)))]
    grants += [(SERVING, slot) for slot in granted]
    missing -= len(granted)
    if missing > 0:
        _ask(asks, jobs, missing - coming)
        return grants, asks
    waiting = _start(grants, jobs, left, fewest={job.name: job.least for job in jobs})
    if waiting is not None:
        missing = waiting.least - len(left) - coming
        stable = [job for job in jobs if job.is_stable]
        if sum(job.spare for job in stable) >= missing:
            _ask(asks, stable, missing)
        return grants, asks
    for job in jobs:
        if job.slots and job.is_stable:
            grants += [(job.name, left.pop(0)) for _ in range(min(job.most - len(job.slots), len(left)))]
    return grants, asks


def _start(grants: Moves, jobs: Sequence[SharingJob], left: list[int], *, fewest: dict[str, int]) -> SharingJob | None:
    """Add grants that start waiting jobs, in order, to ``grants``; return the first job that does not fit, or None."""
    for job in jobs:
        if job.slots:
            continue
        if len(left) < fewest[job.name]:
            return job
        grants += [(job.name, left.pop(0)) for _ in range(min(job.most, len(left)))]
    return None


def _ask(asks: Moves, jobs: Sequence[SharingJob], missing: int) -> None:
    """Add ``missing`` slots to ask back to ``asks``, one by one: the highest of the job that can spare most then."""
    asked: dict[str, int] = {}
    for _ in range(missing):
        able = [job for job in jobs if job.spare > asked.get(job.name, 0)]
        if not able:
            return
        chosen = max(reversed(able), key=lambda job: job.spare - asked.get(job.name, 0))
        asked[chosen.name] = asked.get(chosen.name, 0) + 1
        asks.append((chosen.name, sorted(chosen.slots)[-asked[chosen.name]]))


class SharingJob(RunningJob):
    """A job of a pool. Its slots are the pool's: a node has the number of the slot it runs in.

    Slots that it was asked to give back are in ``leaving`` alone. It has ended when its agents are gone.
    """

    def __init__(
        self, wanted: ElasticJob, engine: Engine, timeline: Path, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(wanted, engine, timeline, clock=clock)
        self.name = wanted.name
        self.submit_s = wanted.submit_s
        self.slots: set[int] = set()
        self.leaving: dict[int, float] = {}
        """Slot -> when it was asked back."""
        self.first_step_t: float | None = None
        self.has_ended = False
        self._changes = 0
        self._last: Change | None = None
        self._changed_t: float | None = None
        """Time of a change that is not over yet, or None if the job is stable or not started."""
        self._finished_t: float | None = None
        self._may_end = False

    @property
    def least(self) -> int:
        """Fewest slots that the job needs; while it ends, all it has, so that none is asked back."""
        return len(self.slots) if self._progress.is_ending else self._job.least

    @property
    def most(self) -> int:
        return self._job.most

    @property
    def spare(self) -> int:
        return max(0, len(self.slots) - self.least)

    @property
    def is_stable(self) -> bool:
        """Whether the job trains on all its slots, so that some may be asked back for another job."""
        return bool(self.slots) and self._changed_t is None and not self._progress.is_ending

    @property
    def slots_left(self) -> set[int]:
        """All slots that the job has not given back yet."""
        return self.slots | set(self.leaving)

    def take(self, slots: Collection[int]) -> None:
        if self._changes == 0 and not self.slots:
            self.slots, self._changed_t = set(slots), self._clock()
            self.begin(slots)
        else:
            self._move("join", slots, self.slots | set(slots))

    def give_back(self, slots: Collection[int]) -> None:
        """Ask the nodes in slots to leave; the slots are free when :meth:`look` returns them."""
        self.leaving |= dict.fromkeys(slots, self._clock())
        self._move("leave", slots, self.slots - set(slots))

    def look(self) -> set[int]:
        """Read new events, and return the slots that are free now."""
        if self.has_ended or not self.slots_left:
            return set()
        try:
            self.take_in()
            if self.first_step_t is None:
                self.first_step_t = next((line.t for line in self._progress.lines if line.what == "stepped"), None)
            ended = {agent.slot for agent in self.check_agents()}
            if self._changed_t is not None and not self._progress.has_finished:
                index = START if self._last is None else self._changes - 1
                if self.has_stabilized(index, self._last, since=self._changed_t):
                    self._changed_t = None
        except CannotGoOn as error:
            raise CannotGoOn(f"job {self.name}: {error}") from None
        freed = self.slots_left & ended if self._progress.is_ending else ended & set(self.leaving)
        for slot, asked in self.leaving.items():
            if slot not in freed and self._clock() - asked > self._job.stable_within_s:
                raise CannotGoOn(
                    f"job {self.name}: slot {slot} was not returned {self._job.stable_within_s:g} s after its agent "
                    f"received SIGTERM. Does the body ignore that signal, or clean up for too long?"
                )
        self.slots -= freed
        for slot in freed:
            self.leaving.pop(slot, None)
        if self._progress.has_finished:
            now = self._clock()
            self._finished_t = now if self._finished_t is None else self._finished_t
            if not self.slots_left or now - self._finished_t >= EXIT_S:  # its agents had time to go
                for slot in self.slots_left:
                    self._engine.kill(slot)
                freed |= self.slots_left
                self.slots, self.leaving = set(), {}
                self.has_ended = True
        return freed

    def let_end(self) -> None:
        if not self._may_end:
            self._may_end = True
            super().let_end()

    def _move(self, kind: ChangeKind, slots: Collection[int], expected: set[int]) -> None:
        seconds = 0.0 if self.first_step_t is None else round(self._clock() - self.first_step_t, 1)
        self._last, self._changed_t = Change(kind=kind, at_s=seconds, nodes=len(slots)), self._clock()
        self.slots = expected
        self.change(self._changes, self._last, sorted(slots), expected)
        self._changes += 1


_END_S = 5.0


class Servers:
    """The server processes of a pool's serving, each of which has a slot."""

    def __init__(self, files: LaunchFiles, *, variables: Mapping[str, str]) -> None:
        self._files = files
        self._variables = dict(variables)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, slot: int) -> None:
        with open(self._files.serving_log(slot), "ab") as log:
            self._processes[slot] = subprocess.Popen(
                [sys.executable, "-u", "-m", "pytest_distbench.worker", "serving", str(self._files.plan), str(slot)],
                env=self._variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self, slot: int) -> None:
        self._processes[slot].send_signal(signal.SIGTERM)

    def poll(self) -> dict[int, int]:
        ended = {slot: code for slot, process in self._processes.items() if (code := process.poll()) is not None}
        for slot in ended:
            del self._processes[slot]
        return ended

    def log(self, slot: int) -> str:
        return tail(self._files.serving_log(slot))

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_END_S)


_LOOK_S = 0.02


class PoolController:
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
        self._reader = EventReader(timeline)
        self._servers = servers
        self._clock = clock
        self._sleep = sleep
        self._submitted: list[SharingJob] = []
        self._began: float | None = None
        self._serving: set[int] = set()
        """Slots that are to have a server."""
        self._ready: set[int] = set()
        """Slots whose server is ready."""
        self._stopping: set[int] = set()
        self._demands = 0
        """Number of demands that have begun."""
        self._wanted = 0
        """Slots that the serving demands now."""

    def run(self) -> None:
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
        if len(self._submitted) < len(self._jobs) or not all(job.has_ended for job in self._jobs):
            return False
        demand = self._pool.demand
        if self._demands < len(demand):
            raise CannotGoOn(
                f"the training was over after {self._seconds():.1f} s, and the demand goes on until "
                f"{demand[-1][0]:g} s, so the pool did not show what it should. Train longer, or shorten the demand"
            )
        return self._serving <= self._ready

    def _look(self) -> None:
        for job in self._submitted:
            if job.has_ended:
                continue
            for slot in sorted(job.look()):
                self._note("freed", slot, owner=job.name)
            if job.has_ended:
                self._note("ended", job=job.name)
        if self._servers is None:
            return
        for line in self._reader.read():
            if line.what == "server_ready":
                self._ready.add(line.slot)
            if line.what == "server_failed":
                raise CannotGoOn(f"the serving failed in slot {line.slot}: {line.error}")
        for slot, code in self._servers.poll().items():
            if slot not in self._stopping:
                raise CannotGoOn(
                    f"the server in slot {slot} ended with exit code {code}; its log:\n{self._servers.log(slot)}"
                )
            self._stopping.discard(slot)
            self._note("freed", slot, owner=SERVING)

    def _submit(self) -> None:
        if self._began is None and self._submitted and (first := self._submitted[0].first_step_t) is not None:
            self._began = first
            append(self._path, event("clock_began", t=first))
        for job in self._jobs[len(self._submitted) :]:
            if job.submit_s > 0 and self._seconds() < job.submit_s:
                return
            self._submitted.append(job)
            self._note("submitted", job=job.name)

    def _seconds(self) -> float:
        return 0.0 if self._began is None else self._clock() - self._began

    def _demand(self) -> None:
        if self._began is None:
            return
        for at_s, slots in self._pool.demand[self._demands :]:
            if self._seconds() < at_s:
                return
            self._demands += 1
            self._wanted = slots
            self._note("demanded", slots=slots)

    def _share(self) -> None:
        here = [job for job in self._submitted if not job.has_ended]
        coming = {slot for job in here for slot in job.leaving} | self._stopping
        held = {slot for job in here for slot in job.slots} | self._serving
        grants, asks = decide(
            self._pool.policy,
            here,
            free=set(range(self._pool.slots)) - coming - held,
            coming=len(coming),
            servers=self._serving,
            wanted=self._wanted if self._serving <= self._ready else max(self._wanted, len(self._serving)),
        )
        for owner in [SERVING, *(job.name for job in here)]:
            for what, moves in (("asked", asks), ("granted", grants)):
                if slots := [slot for name, slot in moves if name == owner]:
                    self._move(what, owner, slots)
        demand = self._pool.demand  # none is to come that would move slots, and no server loads that has to go
        is_at_rest = demand and self._demands == len(demand) and self._serving <= self._ready
        if is_at_rest and not (coming or asks or grants):
            for job in here:
                if job.is_stable:
                    job.let_end()

    def _move(self, what: str, owner: str, slots: Sequence[int]) -> None:
        for slot in slots:
            self._note(what, slot, owner=owner)
        if owner != SERVING:
            job = next(job for job in self._jobs if job.name == owner)
            (job.take if what == "granted" else job.give_back)(slots)
            return
        assert self._servers is not None
        for slot in slots:
            if what == "granted":
                self._serving.add(slot)
                self._servers.start(slot)
            else:
                self._serving.discard(slot)
                self._ready.discard(slot)
                self._stopping.add(slot)
                self._servers.stop(slot)

    def _note(self, what: str, slot: int = -1, **facts: Any) -> None:
        append(self._path, event(what, t=self._clock(), slot=slot, **facts))


def main(path: str) -> int:
    """Run the pool of a plan."""
    plan = LaunchPlan.read_from(path)
    work = plan.expect(Pool)
    pool = work.sharing
    jobs = []
    for index, wanted in enumerate(pool.jobs):
        part = work.part(plan, index)
        part.files.checkpoints.mkdir(parents=True, exist_ok=True)
        part.files.plan.touch(mode=0o600)
        part.files.plan.write_bytes(msgspec.json.encode(part))
        jobs.append(SharingJob(wanted, ENGINES[wanted.engine].make(part, None), part.files.timeline))
    servers = Servers(plan.files, variables=os.environ) if pool.demand else None
    return run_controller(plan, PoolController(pool, jobs, plan.files.pool_timeline, servers=servers).run)


if __name__ == "__main__":
    os._exit(main(sys.argv[1]))  # finalising the threads of the stores is nobody's business
