"""The controller of an elastic job: carries out a membership plan.

``python -m pytest_distbench.elastic.controller PLAN`` runs it.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from pytest_distbench.elastic.engines import ENGINES, CannotGoOn, Engine, NodeOutputs
from pytest_distbench.elastic.engines.nodes import let_parent_end
from pytest_distbench.elastic.plans import changes_of, choose_slots, taken_after
from pytest_distbench.elastic.progress import (
    EXIT_S,
    STABLE_LINES,
    STABLE_STEPS,
    Progress,
    ScriptWatch,
    explain_agent_end,
    explain_split,
    explain_unstable,
)
from pytest_distbench.elastic.records import START, Change, ElasticJob, Job, event
from pytest_distbench.errors import ReadingError
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.wire import Event, EventReader, append


class RunningJob:
    """A job whose nodes come and go; a subclass decides when.

    A body writes the timeline itself; for a script, ``script`` turns its output into events.
    """

    def __init__(
        self,
        job: ElasticJob,
        engine: Engine,
        timeline: Path,
        *,
        script: ScriptWatch | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job = job
        self._engine = engine
        self._path = timeline
        self._reader = EventReader(timeline)
        self._script = script
        self._ends = WorkerEnds(clock)
        self._clock = clock
        self._progress = Progress(job.most, stable_steps=STABLE_STEPS if script is None else STABLE_LINES)
        self._just_ended: list[Event] = []
        """Events of agents that :meth:`check_agents` has not returned yet."""

    def let_end(self) -> None:
        """If the job's ``ends_after`` is set, let the workers end with the epoch of that many steps from now."""
        if self._job.ends_after is None:
            return
        path = LaunchFiles(self._path.parent).last_step
        draft = path.with_suffix(".tmp")
        draft.write_text(f"{self._progress.step + self._job.ends_after}")
        draft.rename(path)

    def close(self) -> None:
        self._engine.close()
        self._note(self._ends.poll())
        self._ends.close()
        if self._script is not None:
            with contextlib.suppress(ReadingError):  # it was reported before, or the job has finished
                self._note(self._script.finish())

    def begin(self, slots: Collection[int]) -> None:
        self._progress.taken = set(slots)
        self._note([event("began", t=self._clock(), slots=sorted(slots))])
        for slot in sorted(slots):
            self._engine.join(slot)

    def change(self, index: int, change: Change, slots: Sequence[int], expected: Collection[int]) -> None:
        self._progress.taken = set(expected)
        changed = event(
            "changed",
            t=self._clock(),
            index=index,
            kind=change.kind,
            slots=list(slots),
            expected=sorted(expected),
            overlaps=change.overlaps,
        )
        self._note([changed])
        for slot in slots:
            getattr(self._engine, change.kind)(slot)  # each kind of change is a method of an engine
        self._progress.forget_steps(self._clock(), ends_generation=change.kind == "crash")  # until now workers went on

    def has_stabilized(self, index: int, change: Change | None, *, since: float) -> bool:
        now = self._clock()
        found = self._progress.stable_generation
        if found is not None:
            self._note([event("stable", t=now, index=index, generation=found, world_size=len(self._progress.taken))])
            return True
        if now - since >= self._job.stable_within_s:
            said = f"\n{self._script.last_words()}" if self._script is not None else ""
            raise CannotGoOn(explain_unstable(self._progress.lines, self._progress.taken, change, self._job) + said)
        return False

    def take_in(self) -> None:
        """Read new events. Raises CannotGoOn if a body raised, or if lines of a script cannot be read as steps."""
        events = self._engine.poll()
        self._note(events)
        ended = [line for line in events if line.what == "agent_ended"]
        self._note(self._ends.poll())
        if self._script is not None:
            try:
                self._note(self._script.poll())
                for agent in ended:
                    if agent.slot in self._progress.taken:
                        self._note(self._script.take_end(agent))
            except ReadingError as error:
                raise CannotGoOn(str(error)) from None
        for line in self._reader.read():
            self._progress.take(line)
            if line.what == "started":
                self._ends.watch(line)
        self._just_ended += ended

    def check_agents(self) -> list[Event]:
        """Return agents that ended since the last call. Raises CannotGoOn if one was needed, or the job is split."""
        ended, self._just_ended = self._just_ended, []
        if self._progress.split is not None:
            raise CannotGoOn(explain_split(*self._progress.split, self._job))
        for agent in ended:
            if agent.slot in self._progress.taken and not self._progress.is_ending:
                log = self._engine.log(agent.slot)
                raise CannotGoOn(explain_agent_end(self._progress.lines, agent, self._job, log=log))
        if self._script is not None and (trouble := self._script.trouble):
            raise CannotGoOn(trouble)
        return ended

    def _note(self, lines: Iterable[Event]) -> None:
        for line in lines:
            append(self._path, line)


class WorkerEnds:
    """Reports when workers end, by a pidfd of each, so that nobody polls the process table."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._alive: dict[int, Event] = {}
        """pidfd -> the "started" event of its worker."""
        self._gone: list[Event] = []

    def watch(self, worker: Event) -> None:
        try:
            self._alive[os.pidfd_open(worker.pid)] = worker
        except OSError:  # it has ended already
            self._gone.append(event("worker_ended", t=self._clock(), slot=worker.slot, pid=worker.pid))

    def poll(self) -> list[Event]:
        """Return the ends of workers since the last call. Never blocks."""
        poller = select.poll()
        for handle in self._alive:
            poller.register(handle, select.POLLIN)
        for handle, _ in poller.poll(0):
            worker = self._alive.pop(handle)
            os.close(handle)
            self._gone.append(event("worker_ended", t=self._clock(), slot=worker.slot, pid=worker.pid))
        gone, self._gone = self._gone, []
        return gone

    def close(self) -> None:
        while self._alive:
            os.close(self._alive.popitem()[0])


_LOOK_S = 0.02


class Controller(RunningJob):
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
        """(time of the last change, highest step of the job then), or None."""
        self._resume: tuple[float, int] | None = None
        """(time at which a stopped node is to be resumed, its slot), or None."""

    def run(self) -> None:
        with contextlib.closing(self):
            self.begin(range(self._job.start))
            last: tuple[int, Change | None] = START, None
            self._wait_until_stable(*last)
            for index, change in enumerate(changes_of(self._job.plan)):
                if index and not change.overlaps:
                    self._wait_until_stable(*last)
                if not self._wait_until(change):
                    self._check_reached(index, str(change))
                    break
                slots = choose_slots(change, self._progress.taken, least=self._job.least, most=self._job.most)
                self.take_in()  # steps from before the change are none after it
                self._changed = self._clock(), self._progress.step
                self.change(index, change, slots, taken_after(change, slots, self._progress.taken))
                if change.kind == "join":  # whoever was there before has gone
                    self._ended -= set(slots)
                    self._just_ended = [agent for agent in self._just_ended if agent.slot not in slots]
                if change.for_s is not None:
                    self._resume = self._clock() + change.for_s, slots[0]
                last = index, change
            if last[1] is not None:
                self._wait_until_stable(*last)
            self.let_end()
            while not self._progress.has_finished:
                self._look()
            deadline = self._clock() + EXIT_S
            while self._progress.taken - self._ended and self._clock() < deadline:
                self._look()

    def _wait_until_stable(self, index: int, change: Change | None) -> None:
        since = self._clock() + (change.for_s or 0.0 if change is not None else 0.0)
        while not self._progress.has_finished:
            if self._resume is None and self.has_stabilized(index, change, since=since):
                return
            self._look()
        if change is not None:
            self._check_reached(index, f"the job was stable after {change}")

    def _wait_until(self, change: Change) -> bool:
        """Wait until a change is due; False if the training ended before. Seconds count while the job trains."""
        while not self._progress.has_finished:
            reached = self._progress.saved if self._job.hold else self._progress.step  # who holds has saved before
            if change.at_step is not None and reached >= change.at_step:
                return True
            if change.at_s is not None and (self._trained_s >= change.at_s or change.overlaps):
                return True
            before = self._clock()
            self._look()
            self._trained_s += self._clock() - before
        return False

    def _check_reached(self, index: int, what: str) -> None:
        if self._job.cycle is not None and self._job.cycle.times is None and index:
            return
        late = ""
        if self._changed is not None:
            t, step = self._changed
            late = (
                f"; {self._clock() - t:.1f} s and {self._progress.step - step} steps of these came after the last "
                f"change"
            )
        raise CannotGoOn(
            f"the training was over after {self._trained_s:.1f} s and {self._progress.step} steps, before {what}{late}"
            f": change {index + 1} of {self._job.planned} shows nothing. Train longer, or shorten the plan"
        )

    def _look(self) -> None:
        self._sleep(_LOOK_S)
        if self._resume is not None and self._clock() >= self._resume[0]:
            self._engine.go_on(self._resume[1])
            self._resume = None
            self._progress.forget_steps(self._clock())
        self.take_in()
        self._ended |= {agent.slot for agent in self.check_agents()}


def run_controller(plan: LaunchPlan, run: Callable[[], None]) -> int:
    """Run a controller to its end, and return the exit code; ``files.trouble`` says why it is not 0."""
    try:
        run()
    except CannotGoOn as error:
        plan.files.trouble.write_text(str(error))
        return 1
    finally:
        let_parent_end()
    return 0


def main(path: str) -> int:
    """Run the elastic job of a plan."""
    plan = LaunchPlan.read_from(path)
    job = plan.expect(Job).job
    plan.files.checkpoints.mkdir(exist_ok=True)
    outputs = NodeOutputs(plan.files) if job.steps is not None else None
    watch = ScriptWatch(plan.files, outputs, job.steps) if outputs is not None and job.steps is not None else None
    engine = ENGINES[job.engine].make(plan, outputs)
    return run_controller(plan, Controller(job, engine, plan.files.timeline, script=watch).run)


if __name__ == "__main__":
    os._exit(main(sys.argv[1]))  # finalising the store's threads is nobody's business
