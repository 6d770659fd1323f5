"""One job of a pool: takes slots and gives them back, and says when it has ended or cannot go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path

from pytest_distbench.jobs.control.progress import EXIT_S
from pytest_distbench.jobs.control.running import RunningJob
from pytest_distbench.jobs.engines.contract import CannotGoOn, Engine
from pytest_distbench.jobs.pool.allocation import Holder
from pytest_distbench.records.elastic import START, Change, ChangeKind
from pytest_distbench.records.pool import PoolJob
from pytest_distbench.records.timeline import Stepped


class SharingJob(RunningJob):
    """A job of a pool. Its slots are the pool's: a node has the number of the slot it runs in.

    Those it was asked to give back are leaving, and no longer among its slots. It has ended when its agents are gone.
    """

    def __init__(
        self, wanted: PoolJob, engine: Engine, timeline: Path, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(wanted.job, engine, timeline, clock=clock)
        self.name = wanted.name
        self.submit_s = wanted.submit_s
        self.slots: set[int] = set()
        self.leaving: dict[int, float] = {}
        """Slot -> when it was asked for."""
        self.first_step_t: float | None = None
        self.has_ended = False
        self._changes = 0
        self._last: Change | None = None
        self._changed_t: float | None = None
        """When the change came that is not over; None: the job is stable, or not started."""
        self._finished_t: float | None = None
        self._may_end = False

    @property
    def holder(self) -> Holder:
        """As the policy sees it; one that is about to end neither takes nor gives."""
        is_ending = self._progress.is_ending
        return Holder(
            name=self.name,
            least=len(self.slots) if is_ending else self._job.least,
            most=self._job.most,
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
            self.slots, self._changed_t = set(slots), self._clock()
            self._begin(slots)
        else:
            self._move("join", slots, self.slots | set(slots))

    def give_back(self, slots: Collection[int]) -> None:
        """Ask the nodes in slots to go; they are free when :meth:`look` says so."""
        self.leaving |= dict.fromkeys(slots, self._clock())
        self._move("leave", slots, self.slots - set(slots))

    def look(self) -> set[int]:
        """Take in what has happened. Returns the slots that are free now."""
        if self.has_ended or not self.slots_left:
            return set()
        try:
            return self._look()
        except CannotGoOn as error:
            raise CannotGoOn(f"job {self.name}: {error}") from None

    def let_end(self) -> None:
        if not self._may_end:
            self._may_end = True
            super().let_end()

    def _move(self, kind: ChangeKind, slots: Collection[int], expected: set[int]) -> None:
        seconds = 0.0 if self.first_step_t is None else round(self._clock() - self.first_step_t, 1)
        self._last, self._changed_t = Change(kind=kind, at_s=seconds, nodes=len(slots)), self._clock()
        self.slots = expected
        self._change(self._changes, self._last, sorted(slots), expected)
        self._changes += 1

    def _look(self) -> set[int]:
        self._take_in()
        if self.first_step_t is None:
            self.first_step_t = next((line.t for line in self._progress.lines if isinstance(line, Stepped)), None)
        ended = {agent.slot for agent in self._check()}
        self._settle()
        freed = self.slots_left & ended if self._progress.is_ending else ended & set(self.leaving)
        self._check_left(freed)
        self.slots -= freed
        for slot in freed:
            self.leaving.pop(slot, None)
        return freed | self._end()

    def _settle(self) -> None:
        if self._changed_t is None or self._progress.has_finished:
            return
        index = START if self._last is None else self._changes - 1
        if self._has_settled(index, self._last, since=self._changed_t):
            self._changed_t = None

    def _check_left(self, freed: Collection[int]) -> None:
        limit_s = self._job.settle_s
        for slot, asked in self.leaving.items():
            if slot not in freed and self._clock() - asked > limit_s:
                raise CannotGoOn(
                    f"slot {slot} was not given back {limit_s:g} s after its agent was "
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
