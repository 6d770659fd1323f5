"""The controller of an elastic job: carries out a membership plan, and says when the job is stable or cannot go on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from pytest_distbench.errors import ReadingError
from pytest_distbench.jobs.control.diagnosis import tell_agent_end, tell_split, tell_unstable
from pytest_distbench.jobs.control.ends import WorkerEnds
from pytest_distbench.jobs.control.progress import EXIT_S, STABLE_LINES, STABLE_STEPS, Progress
from pytest_distbench.jobs.control.schedule import changes_of, choose_slots, taken_after
from pytest_distbench.jobs.control.script import ScriptWatch
from pytest_distbench.jobs.engines.contract import CannotGoOn, Engine
from pytest_distbench.records.elastic import START, Change, ChangeKind, ElasticJob
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.timeline import (
    AgentEnded,
    Began,
    Changed,
    Line,
    Stable,
    Started,
    TimelineReader,
    append,
)

_LOOK_S = 0.02


def let_end(timeline: Path, *, after: int) -> None:
    """Let a training end with the epoch of a step; its workers look at the end of each epoch."""
    path = LaunchFiles(timeline.parent).last_step
    draft = path.with_suffix(".tmp")
    draft.write_text(f"{after}")
    draft.rename(path)


class Controller:
    """One elastic job from start to end.

    Of a script's output its watch makes the timeline's lines; a body appends them itself.
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
        self._acts: dict[ChangeKind, Callable[[int], None]] = {
            "join": engine.join,
            "leave": engine.leave,
            "kill": engine.kill,
            "crash": engine.crash,
            "stop": engine.stop,
        }
        self._path = timeline
        self._reader = TimelineReader(timeline)
        self._clock = clock
        self._sleep = sleep
        self._progress = Progress(job.most, stable_steps=STABLE_STEPS if script is None else STABLE_LINES)
        self._ended: set[int] = set()
        self._just_ended: list[AgentEnded] = []
        """Agents whose end was not yet asked about."""
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
            self._engine.close()
            self._note_all(self._ends.poll())
            self._ends.close()
            if self._script is not None:
                with contextlib.suppress(ReadingError):  # it was told before, or the job has finished
                    self._note_all(self._script.finish())

    def _run(self) -> None:
        self._progress.taken = set(range(self._job.start))
        self._note(Began(t=self._clock(), slots=sorted(self._progress.taken)))
        for slot in sorted(self._progress.taken):
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
        if self._job.ends_after is not None:
            let_end(self._path, after=self._progress.step + self._job.ends_after)
        while not self._progress.has_finished:
            self._look()
        self._wait_for_exit()

    def _carry_out(self, index: int, change: Change) -> None:
        slots = choose_slots(change, self._progress.taken, least=self._job.least, most=self._job.most)
        self._take_in()  # steps from before the change are none after it
        self._progress.taken = taken_after(change, slots, self._progress.taken)
        self._changed = self._clock(), self._progress.step
        self._note(
            Changed(
                t=self._clock(),
                index=index,
                kind=change.kind,
                slots=slots,
                expected=sorted(self._progress.taken),
                overlaps=change.overlaps,
            )
        )
        act = self._acts[change.kind]
        for slot in slots:
            act(slot)
            self._ended.discard(slot)
        self._progress.forget_steps(self._clock(), ends_generation=change.kind == "crash")  # until now workers went on
        if change.for_s is not None:
            self._resume = self._clock() + change.for_s, slots[0]

    def _settle(self, index: int, change: Change | None) -> None:
        """Wait until all nodes that there should be have taken steps together since the last change."""
        deadline = self._clock() + self._job.settle_s + (change.for_s or 0.0 if change is not None else 0.0)
        while not self._progress.has_finished:
            found = self._progress.stable_generation if self._resume is None else None
            if found is not None:
                self._note(Stable(t=self._clock(), index=index, generation=found, world_size=len(self._progress.taken)))
                return
            if self._clock() >= deadline:
                said = f"\n{self._script.last_words()}" if self._script is not None else ""
                raise CannotGoOn(tell_unstable(self._progress.lines, self._progress.taken, change, self._job) + said)
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
        ended, self._just_ended = self._just_ended, []
        if self._progress.split is not None:
            raise CannotGoOn(tell_split(*self._progress.split, self._job))
        for agent in ended:
            if agent.slot in self._progress.taken and not self._progress.is_ending:
                log = self._engine.log(agent.slot)
                raise CannotGoOn(tell_agent_end(self._progress.lines, agent, self._job, log=log))
        if self._script is not None and (trouble := self._script.trouble):
            raise CannotGoOn(trouble)

    def _take_in(self) -> None:
        """Heed what has happened."""
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
                    if agent.slot in self._progress.taken:
                        self._note_all(self._script.heed(agent))
            except ReadingError as error:
                raise CannotGoOn(str(error)) from None
        for line in self._reader.read():
            self._progress.heed(line)
            if isinstance(line, Started):
                self._ends.watch(line)
        self._just_ended += ended

    def _wait_for_exit(self) -> None:
        deadline = self._clock() + EXIT_S
        while self._progress.taken - self._ended and self._clock() < deadline:
            self._look()

    def _note(self, line: Line) -> None:
        append(self._path, line)

    def _note_all(self, lines: Iterable[Line]) -> None:
        for line in lines:
            self._note(line)
