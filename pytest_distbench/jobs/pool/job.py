"""One job of a pool while it runs: its engine, its timeline, and the slots it has."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path

from pytest_distbench.jobs.control.controller import let_end
from pytest_distbench.jobs.control.diagnosis import tell_split, tell_unstable
from pytest_distbench.jobs.control.progress import EXIT_S, Progress
from pytest_distbench.jobs.engines.contract import CannotGoOn, Engine
from pytest_distbench.jobs.pool.allocation import Holder
from pytest_distbench.records.elastic import START, Change
from pytest_distbench.records.pool import PoolJob
from pytest_distbench.records.record import Record
from pytest_distbench.records.timeline import AgentEnded, Began, Changed, Stable, Stepped, TimelineReader, append


class RunningJob:
    """A job of a pool. Its slots are the pool's: a node has the number of the slot it runs in.

    Those it was asked to give back are leaving, and no longer among its slots. It has ended when its agents are gone.
    """

    def __init__(
        self, wanted: PoolJob, engine: Engine, timeline: Path, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.wanted = wanted
        self.slots: set[int] = set()
        self.leaving: dict[int, float] = {}
        self.first_step_t: float | None = None
        self.has_ended = False
        self._engine = engine
        self._path = timeline
        self._reader = TimelineReader(timeline)
        self._clock = clock
        self._progress = Progress(wanted.job.most)
        self._changes = 0
        self._change: Change | None = None
        self._changed_t: float | None = None
        """When the change came that is not over; None: the job is stable, or not started."""
        self._finished_t: float | None = None
        self._may_end = False

    @property
    def holder(self) -> Holder:
        """As the policy sees it; one that is about to end neither takes nor gives."""
        is_ending = self._progress.is_ending
        return Holder(
            name=self.wanted.name,
            least=len(self.slots) if is_ending else self.wanted.job.least,
            most=self.wanted.job.most,
            slots=frozenset(self.slots),
            is_stable=bool(self.slots) and self._changed_t is None and not is_ending,
        )

    @property
    def slots_left(self) -> set[int]:
        """All it has, and has not given back yet."""
        return self.slots | set(self.leaving)

    def take(self, slots: Collection[int]) -> None:
        """Take slots that are free: to start, or to grow."""
        if self._changes == 0 and not self.slots:
            self._append(Began(t=self._clock(), slots=sorted(slots)))
            self._expect(None, slots)
        else:
            self._expect(Change(kind="join", at_s=self._seconds(), nodes=len(slots)), self.slots | set(slots), slots)
        for slot in sorted(slots):
            self._engine.join(slot)
        self._progress.forget_steps(self._clock())

    def give_back(self, slots: Collection[int]) -> None:
        """Ask the nodes in slots to go; they are free when :meth:`look` says so."""
        self._expect(Change(kind="leave", at_s=self._seconds(), nodes=len(slots)), self.slots - set(slots), slots)
        for slot in sorted(slots):
            self.leaving[slot] = self._clock()
            self._engine.leave(slot)
        self._progress.forget_steps(self._clock())

    def look(self) -> set[int]:
        """Take in what has happened. Returns the slots that are free now."""
        if self.has_ended or not self.slots_left:
            return set()
        ended = [told for told in self._tell() if isinstance(told, AgentEnded)]
        for line in self._reader.read():
            self._progress.heed(line)
            if isinstance(line, Stepped) and self.first_step_t is None:
                self.first_step_t = line.t
        if self._progress.split is not None:
            raise CannotGoOn(f"job {self.wanted.name}: {tell_split(*self._progress.split, self.wanted.job)}")
        self._check_stable()
        freed = {agent.slot for agent in ended if agent.slot in self.leaving}
        for agent in ended:
            if agent.slot in self.slots and not self._progress.is_ending:
                raise CannotGoOn(
                    f"job {self.wanted.name}: the agent of slot {agent.slot} ended with exit code {agent.code}, and "
                    f"nobody had asked it to; its log:\n{self._engine.log(agent.slot)}"
                )
            if self._progress.is_ending:
                freed.add(agent.slot)
        self._check_left(freed)
        freed &= self.slots_left
        self.slots -= freed
        for slot in freed:
            self.leaving.pop(slot, None)
        return freed | self._end()

    def let_end(self) -> None:
        """Let it end as many steps from now as it wants to, if it has not been told before."""
        if self.wanted.job.ends_after is not None and not self._may_end:
            self._may_end = True
            let_end(self._path, after=self._progress.step + self.wanted.job.ends_after)

    def close(self) -> None:
        """End all its nodes."""
        self._engine.close()

    def _expect(self, change: Change | None, slots: Collection[int], changed: Collection[int] = ()) -> None:
        now = self._clock()
        self.slots = set(slots)
        self._progress.taken = set(slots)
        self._progress.forget_steps(now)
        self._change, self._changed_t = change, now
        if change is not None:
            expected = sorted(slots)
            self._append(
                Changed(t=now, index=self._changes, kind=change.kind, slots=sorted(changed), expected=expected)
            )
            self._changes += 1

    def _seconds(self) -> float:
        """Since its first step, for people."""
        return 0.0 if self.first_step_t is None else round(self._clock() - self.first_step_t, 1)

    def _tell(self) -> list[Record]:
        told: list[Record] = list(self._engine.poll())
        for line in told:
            self._append(line)
        return told

    def _check_stable(self) -> None:
        if self._changed_t is None or self._progress.has_finished:
            return
        found = self._progress.stable_generation
        now = self._clock()
        if found is not None:
            index = START if self._change is None else self._changes - 1
            self._append(Stable(t=now, index=index, generation=found, world_size=len(self.slots)))
            self._changed_t = None
        elif now - self._changed_t > self.wanted.job.settle_s:
            why = tell_unstable(self._progress.lines, self.slots, self._change, self.wanted.job)
            raise CannotGoOn(f"job {self.wanted.name}: {why}")

    def _check_left(self, freed: Collection[int]) -> None:
        limit_s = self.wanted.job.settle_s
        for slot, asked in self.leaving.items():
            if slot not in freed and self._clock() - asked > limit_s:
                raise CannotGoOn(
                    f"job {self.wanted.name}: slot {slot} was not given back {limit_s:g} s after its agent was "
                    "asked to go with SIGTERM. Does the body ignore that signal, or clean up for so long?"
                )

    def _end(self) -> set[int]:
        """When it has finished, and its agents had time to go, all of its slots are free."""
        if not self._progress.has_finished:
            return set()
        now = self._clock()
        self._finished_t = now if self._finished_t is None else self._finished_t
        if self.slots_left and now - self._finished_t < EXIT_S:
            return set()
        freed = self.slots_left
        for slot in freed:
            self._engine.kill(slot)
        self.slots, self.leaving = set(), {}
        self.has_ended = True
        return freed

    def _append(self, line: Record) -> None:
        append(self._path, line)
