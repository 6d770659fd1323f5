"""The controller of an elastic job: carries out a membership plan, and says when the job is stable or cannot go on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from pytest_distbench.errors import ReadingError
from pytest_distbench.launch.diagnosis.blame import is_follower
from pytest_distbench.launch.elastic.diagnosis import tell_agent_end, tell_unstable
from pytest_distbench.launch.elastic.ends import WorkerEnds
from pytest_distbench.launch.elastic.engine import Engine
from pytest_distbench.launch.elastic.schedule import changes_of, choose_slots, taken_after
from pytest_distbench.launch.elastic.script import ScriptWatch
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
    Started,
    Stepped,
    TimelineReader,
    append,
)

STABLE_STEPS = 3
"""So many steps of every node in one generation make a job stable."""
STABLE_LINES = 1
"""Of a script so many lines of steps: from one to the next may be an epoch."""
EXIT_S = 30.0
"""How long agents may take to end after their workers have finished."""
_LOOK_S = 0.02


class CannotGoOn(Exception):
    """The job has failed; the text says how."""


class Controller:
    """One elastic job from start to end.

    Args:
        job: with the plan of its membership.
        engine: changes it.
        timeline: file that workers append to, as this does.
        script: makes timeline lines of what a script shows; None: a body appends them itself.
        clock: CLOCK_MONOTONIC seconds.
        sleep: waits.
    """

    def __init__(
        self,
        job: ElasticJob,
        engine: Engine,
        timeline: Path,
        *,
        script: ScriptWatch | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._job = job
        self._script = script
        self._ends = WorkerEnds(clock)
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
        self._worlds: dict[int, int] = {}
        """Generation -> workers in it."""
        self._just_ended: list[AgentEnded] = []
        """Agents whose end was not yet asked about."""
        self._old = -1
        """The generation that a worker which dies takes with it."""
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
            self._note_all(self._ends.poll())
            self._ends.close()
            if self._script is not None:
                with contextlib.suppress(ReadingError):  # it was told before, or the job has finished
                    self._note_all(self._script.finish())

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
        self._take_in()  # steps from before the change are none after it
        self._taken = taken_after(change, slots, self._taken)
        self._steps.clear()
        self._old = max(self._worlds, default=-1) if change.kind == "crash" else -1
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
        if change.for_s is not None:
            self._resume = self._clock() + change.for_s, slots[0]

    def _settle(self, index: int, change: Change | None) -> None:
        """Wait until all nodes that there should be have taken steps together since the last change."""
        deadline = self._clock() + self._job.timers.settle_s + (change.for_s or 0.0 if change is not None else 0.0)
        while not self._has_finished():
            found = self._stable_generation()
            if found is not None:
                self._note(Stable(t=self._clock(), index=index, generation=found, world_size=len(self._taken)))
                return
            if self._clock() >= deadline:
                said = f"\n{self._script.last_words()}" if self._script is not None else ""
                raise CannotGoOn(tell_unstable(self._lines, self._taken, change, self._job) + said)
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
            and min(counts.values()) >= (STABLE_STEPS if self._script is None else STABLE_LINES)
            and newest > self._old
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
            CannotGoOn: a body failed, or an agent that should not have ended has.
        """
        self._sleep(_LOOK_S)
        if self._resume is not None and self._clock() >= self._resume[0]:
            self._engine.go_on(self._resume[1])
            self._resume = None
            self._steps.clear()
        self._take_in()
        ended, self._just_ended = self._just_ended, []
        for agent in ended:
            if agent.slot in self._taken and not self._has_finished() and not self._finished:
                raise CannotGoOn(tell_agent_end(self._lines, agent, self._job, log=self._engine.log(agent.slot)))
        if self._script is not None and (trouble := self._script.trouble):
            raise CannotGoOn(trouble)

    def _take_in(self) -> None:
        """Heed what has happened.

        Raises:
            CannotGoOn: a body failed, or a script's steps cannot be told.
        """
        ended = []
        for told in self._engine.poll():
            self._note(told)
            if isinstance(told, AgentEnded):
                self._ended.add(told.slot)
                ended.append(told)
        self._note_all(self._ends.poll())
        if self._script is not None:
            try:
                self._note_all(self._script.poll())
                for agent in ended:
                    self._note_all(self._script.heed(agent))
            except ReadingError as error:
                raise CannotGoOn(str(error)) from None
        for line in self._reader.read():
            self._lines.append(line)
            self._heed(line)
        self._just_ended += ended

    def _heed(self, line: Line) -> None:
        if isinstance(line, Started):
            self._ends.watch(line)
        elif isinstance(line, Joined):
            self._worlds[line.generation] = line.world_size
        elif isinstance(line, Stepped):
            self._step = max(self._step, line.step)
            counts = self._steps.setdefault(line.generation, {})
            counts[line.slot] = counts.get(line.slot, 0) + 1
        elif isinstance(line, Finished):
            self._finished.setdefault(line.generation, set()).add(line.slot)
        elif isinstance(line, Raised) and line.generation is not None and not is_follower(line.error):
            raise CannotGoOn(
                f"the body raised in slot {line.slot}, generation {line.generation}: {line.error.kind}: "
                f"{line.error.message}\n{line.error.traceback}"
            )

    def _has_finished(self) -> bool:
        """Whether all workers of a generation have: there is nothing left to train."""
        return any(len(slots) >= self._worlds.get(g, self._job.most) for g, slots in self._finished.items())

    def _wait_for_exit(self) -> None:
        deadline = self._clock() + EXIT_S
        while self._taken - self._ended and self._clock() < deadline:
            self._look()

    def _note(self, line: Line) -> None:
        append(self._path, line)

    def _note_all(self, lines: Iterable[Line]) -> None:
        for line in lines:
            self._note(line)
