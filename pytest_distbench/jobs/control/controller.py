"""The controller of an elastic job: carries out a membership plan, and says when the job cannot go on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pytest_distbench.jobs.control.progress import EXIT_S
from pytest_distbench.jobs.control.running import RunningJob
from pytest_distbench.jobs.control.schedule import changes_of, choose_slots, taken_after
from pytest_distbench.jobs.control.script import ScriptWatch
from pytest_distbench.jobs.engines.contract import CannotGoOn, Engine
from pytest_distbench.records.elastic import START, Change, ElasticJob

_LOOK_S = 0.02


class Controller(RunningJob):
    """One elastic job from start to end."""

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
        super().__init__(job, engine, timeline, script=script, clock=clock)
        self._sleep = sleep
        self._ended: set[int] = set()
        self._trained_s = 0.0
        self._changed: tuple[float, int] | None = None
        """When the last change was made, and the highest step then."""
        self._resume: tuple[float, int] | None = None
        """When a node that stands still goes on, and which."""

    def run(self) -> None:
        """Start the job, change its membership as planned, and wait until it has finished; else :class:`CannotGoOn`."""
        try:
            self._run()
        finally:
            self.close()

    def _run(self) -> None:
        self._begin(range(self._job.start))
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
        self.let_end()
        while not self._progress.has_finished:
            self._look()
        self._wait_for_exit()

    def _carry_out(self, index: int, change: Change) -> None:
        slots = choose_slots(change, self._progress.taken, least=self._job.least, most=self._job.most)
        self._take_in()  # steps from before the change are none after it
        self._changed = self._clock(), self._progress.step
        self._change(index, change, slots, taken_after(change, slots, self._progress.taken))
        if change.kind == "join":  # whoever was there before has gone
            self._ended -= set(slots)
            self._just_ended = [agent for agent in self._just_ended if agent.slot not in slots]
        if change.for_s is not None:
            self._resume = self._clock() + change.for_s, slots[0]

    def _settle(self, index: int, change: Change | None) -> None:
        """Wait until all nodes that there should be have taken steps together since the last change."""
        since = self._clock() + (change.for_s or 0.0 if change is not None else 0.0)
        while not self._progress.has_finished:
            if self._resume is None and self._has_settled(index, change, since=since):
                return
            self._look()
        if change is not None:
            self._check_reached(index, f"the job was stable after {change}")

    def _wait_until(self, change: Change, *, settles: bool) -> bool:
        """Wait for the moment of a change; False: the training was over before. Seconds count while the job trains."""
        while not self._progress.has_finished:
            reached = self._progress.saved if self._job.hold else self._progress.step  # who holds has saved before
            if change.at_step is not None and reached >= change.at_step:
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
        late = ""
        if self._changed is not None:
            t, step = self._changed
            late = (
                f"; {self._clock() - t:.1f} s and {self._progress.step - step} steps of them lie behind the last change"
            )
        raise CannotGoOn(
            f"the training was over after {self._trained_s:.1f} s and {self._progress.step} steps, before {what}{late}"
            f": change {index + 1} of {self._job.plan} shows nothing. Train longer, or shorten the plan"
        )

    def _look(self) -> None:
        """Take in what has happened, and let a moment pass."""
        self._sleep(_LOOK_S)
        if self._resume is not None and self._clock() >= self._resume[0]:
            self._engine.go_on(self._resume[1])
            self._resume = None
            self._progress.forget_steps(self._clock())
        self._take_in()
        self._ended |= {agent.slot for agent in self._check()}

    def _wait_for_exit(self) -> None:
        deadline = self._clock() + EXIT_S
        while self._progress.taken - self._ended and self._clock() < deadline:
            self._look()
