"""The controller of an elastic job: carries out a membership plan, and says when the job is stable or cannot go on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pytest_distbench.launch.diagnosis.blame import is_follower
from pytest_distbench.launch.elastic.diagnosis import tell_split, tell_unstable
from pytest_distbench.launch.elastic.engine import CannotGoOn, Engine
from pytest_distbench.launch.elastic.schedule import changes_of, choose_slots, taken_after
from pytest_distbench.records.elastic import START, Change, ElasticJob
from pytest_distbench.records.timeline import (
    AgentEnded,
    Began,
    Changed,
    Finished,
    Joined,
    Line,
    Raised,
    Stable,
    Stepped,
    TimelineReader,
    append,
)

STABLE_STEPS = 3
"""So many steps of every node in one generation make a job stable."""
EXIT_S = 30.0
"""How long agents may take to end after their workers have finished."""
SPLIT_S = 5.0
"""How long a generation may go on beside a later one: agents end its workers meanwhile."""
_LOOK_S = 0.02


class Controller:
    """One elastic job from start to end.

    Args:
        job: with the plan of its membership.
        engine: changes it.
        timeline: file that workers append to, as this does.
        clock: CLOCK_MONOTONIC seconds.
        sleep: waits.
    """

    def __init__(
        self,
        job: ElasticJob,
        engine: Engine,
        timeline: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._job = job
        self._engine = engine
        self._path = timeline
        self._reader = TimelineReader(timeline)
        self._clock = clock
        self._sleep = sleep
        self._lines: list[Line] = []
        self._taken: set[int] = set()
        self._ended: set[int] = set()
        self._steps: dict[int, dict[int, int]] = {}
        """Generation -> slot -> steps since the last change."""
        self._changed_at = 0.0
        """When that was carried out: what a worker did until then says nothing of what it came to."""
        self._worlds: dict[int, int] = {}
        """Generation -> workers in it."""
        self._first: dict[int, float] = {}
        """Generation -> when its first step was over."""
        self._step = 0
        self._trained_s = 0.0
        self._resume: tuple[float, int] | None = None
        """When a node that stands still goes on, and which."""
        self._finished: dict[int, set[int]] = {}

    def run(self) -> None:
        """Start the job, change its membership as planned, and wait until it has finished.

        Raises:
            CannotGoOn: it failed, or was over before all changes had happened.
        """
        try:
            self._run()
        finally:
            self._engine.close()

    def _run(self) -> None:
        self._taken = set(range(self._job.start))
        self._note(Began(t=self._clock(), slots=sorted(self._taken)))
        for slot in sorted(self._taken):
            self._engine.join(slot)
        self._settle(START, None)
        waiting: list[tuple[int, Change]] = []
        for index, change in enumerate(changes_of(self._job.plan)):
            if waiting and not change.overlaps:
                self._settle(*waiting[-1])
            if not self._wait_until(change, settles=not change.overlaps):
                self._check_reached(index, str(change))
                break
            self._carry_out(index, change)
            waiting.append((index, change))
        if waiting:
            self._settle(*waiting[-1])
        while not self._has_finished():
            self._look()
        self._wait_for_exit()

    def _carry_out(self, index: int, change: Change) -> None:
        slots = choose_slots(change, self._taken, least=self._job.least, most=self._job.most)
        self._taken = taken_after(change, slots, self._taken)
        self._steps.clear()
        self._note(
            Changed(
                t=self._clock(),
                index=index,
                kind=change.kind,
                slots=slots,
                expected=sorted(self._taken),
                overlaps=change.overlaps,
            )
        )
        for slot in slots:
            getattr(self._engine, change.kind)(slot)  # the contract names its methods as plans name changes
            self._ended.discard(slot)
        self._changed_at = self._clock()
        if change.for_s is not None:
            self._resume = self._clock() + change.for_s, slots[0]

    def _settle(self, index: int, change: Change | None) -> None:
        """Wait until all nodes that there should be have taken steps together since the last change."""
        deadline = self._clock() + self._job.settle_s + (change.for_s or 0.0 if change is not None else 0.0)
        while not self._has_finished():
            found = self._stable_generation()
            if found is not None:
                self._note(Stable(t=self._clock(), index=index, generation=found, world_size=len(self._taken)))
                return
            if self._clock() >= deadline:
                raise CannotGoOn(tell_unstable(self._lines, self._taken, change, self._job))
            self._look()
        if change is not None:
            self._check_reached(index, f"the job was stable after {change}")

    def _stable_generation(self) -> int | None:
        if self._resume is not None or not self._steps:
            return None
        newest = max(self._steps)
        counts = self._steps[newest]
        is_stable = (
            set(counts) == self._taken
            and self._worlds.get(newest) == len(self._taken)
            and min(counts.values()) >= STABLE_STEPS
        )
        return newest if is_stable else None

    def _wait_until(self, change: Change, *, settles: bool) -> bool:
        """Wait for the moment of a change; False: the training was over before. Seconds count while the job trains."""
        while not self._has_finished():
            if change.at_step is not None and self._step >= change.at_step:
                return True
            if change.at_s is not None and (self._trained_s >= change.at_s or not settles):
                return True
            before = self._clock()
            self._look()
            self._trained_s += self._clock() - before
        return False

    def _check_reached(self, index: int, what: str) -> None:
        """A training that ends before its plan is at its end has not shown what it was run for."""
        if self._job.plan.cycle is not None and self._job.plan.cycle.times is None and index:
            return
        raise CannotGoOn(
            f"the training was over after {self._trained_s:.1f} s and {self._step} steps, before {what}: "
            f"change {index + 1} of {self._job.plan} shows nothing. Train longer, or shorten the plan"
        )

    def _look(self) -> None:
        """Take in what has happened, and let a moment pass.

        Raises:
            CannotGoOn: a body failed, an agent that should not have ended has, or the engine has broken down.
        """
        self._sleep(_LOOK_S)
        if self._resume is not None and self._clock() >= self._resume[0]:
            self._engine.go_on(self._resume[1])
            self._resume = None
            self._steps.clear()
        ended = []
        for told in self._engine.poll():
            self._note(told)
            if isinstance(told, AgentEnded):
                self._ended.add(told.slot)
                ended.append(told)
        for line in self._reader.read():
            self._lines.append(line)
            self._heed(line)
        for agent in ended:
            if agent.slot in self._taken and not self._has_finished() and not self._finished:
                raise CannotGoOn(
                    f"the agent of slot {agent.slot} ended with exit code {agent.code}, and nobody had asked it to; "
                    f"its log:\n{self._engine.log(agent.slot)}"
                )

    def _heed(self, line: Line) -> None:
        if isinstance(line, Joined):
            self._worlds[line.generation] = line.world_size
        elif isinstance(line, Stepped):
            self._step = max(self._step, line.step)
            self._first.setdefault(line.generation, line.t)
            self._check_whole(line)
            if line.t >= self._changed_at:
                counts = self._steps.setdefault(line.generation, {})
                counts[line.slot] = counts.get(line.slot, 0) + 1
        elif isinstance(line, Finished):
            self._finished.setdefault(line.generation, set()).add(line.slot)
        elif isinstance(line, Raised) and line.generation is not None and not is_follower(line.error):
            raise CannotGoOn(
                f"the body raised in slot {line.slot}, generation {line.generation}: {line.error.kind}: "
                f"{line.error.message}\n{line.error.traceback}"
            )

    def _check_whole(self, line: Stepped) -> None:
        """No generation goes on beside a later one, but for the moment in which it is ended."""
        newest = max(self._first)
        if line.generation < newest and line.t > self._first[newest] + SPLIT_S:
            raise CannotGoOn(tell_split(line, newest, self._job))

    def _has_finished(self) -> bool:
        """Whether all workers of a generation have: there is nothing left to train."""
        return any(len(slots) >= self._worlds.get(g, self._job.most) for g, slots in self._finished.items())

    def _wait_for_exit(self) -> None:
        deadline = self._clock() + EXIT_S
        while self._taken - self._ended and self._clock() < deadline:
            self._look()

    def _note(self, line: Line) -> None:
        append(self._path, line)
