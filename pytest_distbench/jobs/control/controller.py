"""The controller of an elastic job: carries out a membership plan, and says why a job does not come to rest.

The faults that users report have a name and a remedy here; what of a remedy hangs on the engine is in its row.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from pytest_distbench.errors import ReadingError
from pytest_distbench.jobs.control.progress import EXIT_S, STABLE_LINES, STABLE_STEPS, Progress
from pytest_distbench.jobs.control.schedule import changes_of, choose_slots, taken_after
from pytest_distbench.jobs.control.script import ScriptWatch
from pytest_distbench.jobs.engines.contract import CannotGoOn, Engine
from pytest_distbench.jobs.engines.table import ENGINES, Advice
from pytest_distbench.launch.diagnosis.fates import is_follower
from pytest_distbench.records.elastic import START, Change, ChangeResult, ElasticJob
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.timeline import (
    AgentEnded,
    Began,
    Changed,
    Joined,
    Line,
    Raised,
    Rendezvous,
    Stable,
    Started,
    Stepped,
    TimelineReader,
    WorkerEnded,
    append,
)


def tell_unstable(lines: Sequence[Line], expected: Collection[int], change: Change | None, job: ElasticJob) -> str:
    """A text for a job that had not become stable in time."""
    after = "its start" if change is None else str(change)
    begin = max((line.t for line in lines if isinstance(line, Changed)), default=0.0)
    since = [line for line in lines if line.t >= begin]
    stepped = {line.slot for line in since if isinstance(line, Stepped)}
    missing = sorted(set(expected) - stepped)
    head = (
        f"not stable {job.settle_s:g} s after {after}: {len(expected)} nodes should train together, and of slot "
        f"{', '.join(map(str, missing)) or 'none'} there is no step"
    )
    return f"{head}. {_name(since, expected, change, job)}"


def tell_split(line: Stepped, newest: int, job: ElasticJob) -> str:
    """A text for a job that has fallen into two, each of which trains."""
    timers = ", ".join(f"{name}={value:g}" for name, value in job.timers.items())
    return (
        f"The job is split: slot {line.slot} trains on in generation {line.generation}, beside the nodes of generation "
        f"{newest}. {_advice(job).split.format(timers=timers)}"
    )


def tell_agent_end(lines: Sequence[Line], agent: AgentEnded, job: ElasticJob, *, log: str) -> str:
    """A text for an agent that ended, and nobody had asked it to."""
    used = [line.restarts for line in lines if isinstance(line, Started) and line.slot == agent.slot]
    head = f"the agent of slot {agent.slot} ended with exit code {agent.code}, and nobody had asked it to"
    limit, told = job.timers.get("max_restarts"), _advice(job).restarts
    if told and limit is not None and used and agent.code > 0 and used[-1] >= limit:
        changes = sum(isinstance(line, Changed) for line in lines)
        head += f". Restarts used up: it had taken {used[-1]} of {told.format(limit=limit, changes=changes)}"
    return f"{head}; its log:\n{log}"


def tell_standstill(lines: Sequence[Line]) -> str:
    """How long a job that was ended had come no further, and who stepped last; empty: it never stepped."""
    steps = [line for line in lines if isinstance(line, Stepped)]
    if not steps:
        return ". It took no step"
    furthest = max(step.step for step in steps)
    reached = min(step.t for step in steps if step.step == furthest)
    begun = len({line.generation for line in lines if isinstance(line, Joined) and line.t > reached})
    return (
        f". Its furthest step, {furthest}, came {max(line.t for line in lines) - reached:.0f} s before the last thing "
        f"that it did; {begun} generations have begun since, and the last step of all was one of slot {steps[-1].slot}"
    )


SLOW_S = 30.0
"""A recovery that takes longer is explained."""


def tell_slow(change: ChangeResult, job: ElasticJob) -> str:
    """Why a recovery took so long, by its largest part, and which knob it hangs on; empty: it did not."""
    if change.recovery_s is None or change.recovery_s < SLOW_S or not change.parts:
        return ""
    part, seconds = max(change.parts.items(), key=lambda item: item[1])
    knob = _rendezvous_knob(change, seconds, job) if part == "rendezvous" else _advice(job).knobs[part]
    return (
        f"recovery of {change.recovery_s:.0f} s after the {change.kind} at {change.at_s:.1f} s, of which "
        f"{part.replace('_', ' ')} took {seconds:.0f} s: {knob}"
    )


def _rendezvous_knob(change: ChangeResult, seconds: float, job: ElasticJob) -> str:
    """What it waited for: what takes longest of all that was in it and fits."""
    causes = _advice(job).in_rendezvous(change, job)
    fitting = {text: value for text, value in causes.items() if 0 < value <= seconds}
    return max(fitting, key=lambda text: fitting[text]) if fitting else "agents came late to it, or again and again"


def _advice(job: ElasticJob) -> Advice:
    return ENGINES[job.engine].advice


def _name(since: Sequence[Line], expected: Collection[int], change: Change | None, job: ElasticJob) -> str:
    began = {line.slot for line in since if isinstance(line, Started)}
    joined = {line.slot for line in since if isinstance(line, Joined)}
    met = {line.slot for line in since if isinstance(line, Rendezvous)}
    raised = [line for line in since if isinstance(line, Raised)]
    reasons = [line.error for line in raised if not is_follower(line.error)]
    if reasons:
        return f"Workers raised {len(raised)} times, the last time {reasons[-1].kind}: {reasons[-1].message}"
    if change is not None and change.kind in ("leave", "kill") and not began and not met:
        return _advice(job).unnoticed
    if (began or met) and not joined:
        return (
            f"Hang on join: agents have met{' and started workers' * bool(began)}, and nobody has joined a group. "
            f"{_advice(job).hang_on_join}"
        )
    if not met:
        return _advice(job).no_meeting
    if raised:
        return f"Workers raised {len(raised)} times, the last time {raised[-1].error.kind}: {raised[-1].error.message}"
    if job.steps is not None and joined and not any(isinstance(line, Stepped) for line in since):
        return (
            f"No step: workers have joined their group, and no line that rank {job.steps.rank} printed since matches "
            f"steps={job.steps.source!r}"
        )
    return f"Slots that joined a group: {', '.join(map(str, sorted(joined & set(expected)))) or 'none'}"


class RunningJob:
    """A job whose nodes come and go. Who decides about them is a subclass.

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
    ) -> None:
        self._job = job
        self._engine = engine
        self._path = timeline
        self._reader = TimelineReader(timeline)
        self._script = script
        self._ends = WorkerEnds(clock)
        self._clock = clock
        self._progress = Progress(job.most, stable_steps=STABLE_STEPS if script is None else STABLE_LINES)
        self._just_ended: list[AgentEnded] = []
        """Agents whose end was not yet asked about."""

    def let_end(self) -> None:
        """Let it end as many steps from now as it wants to, if it does; its workers look at the end of each epoch."""
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
            with contextlib.suppress(ReadingError):  # it was told before, or the job has finished
                self._note(self._script.finish())

    def _begin(self, slots: Collection[int]) -> None:
        self._progress.taken = set(slots)
        self._note([Began(t=self._clock(), slots=sorted(slots))])
        for slot in sorted(slots):
            self._engine.join(slot)

    def _change(self, index: int, change: Change, slots: Sequence[int], expected: Collection[int]) -> None:
        acts: dict[str, Callable[[int], None]] = {
            "join": self._engine.join,
            "leave": self._engine.leave,
            "kill": self._engine.kill,
            "crash": self._engine.crash,
            "stop": self._engine.stop,
        }
        self._progress.taken = set(expected)
        changed = Changed(
            t=self._clock(),
            index=index,
            kind=change.kind,
            slots=list(slots),
            expected=sorted(expected),
            overlaps=change.overlaps,
        )
        self._note([changed])
        for slot in slots:
            acts[change.kind](slot)
        self._progress.forget_steps(self._clock(), ends_generation=change.kind == "crash")  # until now workers went on

    def _has_settled(self, index: int, change: Change | None, *, since: float) -> bool:
        """Whether all nodes that there should be have taken steps together since a change, which they must in time."""
        now = self._clock()
        found = self._progress.stable_generation
        if found is not None:
            self._note([Stable(t=now, index=index, generation=found, world_size=len(self._progress.taken))])
            return True
        if now - since >= self._job.settle_s:
            said = f"\n{self._script.last_words()}" if self._script is not None else ""
            raise CannotGoOn(tell_unstable(self._progress.lines, self._progress.taken, change, self._job) + said)
        return False

    def _take_in(self) -> None:
        """Heed what has happened. The job cannot go on where a body failed, or a script's steps cannot be told."""
        told = self._engine.poll()
        self._note(told)
        ended = [line for line in told if isinstance(line, AgentEnded)]
        self._note(self._ends.poll())
        if self._script is not None:
            try:
                self._note(self._script.poll())
                for agent in ended:
                    if agent.slot in self._progress.taken:
                        self._note(self._script.heed(agent))
            except ReadingError as error:
                raise CannotGoOn(str(error)) from None
        for line in self._reader.read():
            self._progress.heed(line)
            if isinstance(line, Started):
                self._ends.watch(line)
        self._just_ended += ended

    def _check(self) -> list[AgentEnded]:
        """Agents that have ended since the last call. The job cannot go on split, or where one should not have."""
        ended, self._just_ended = self._just_ended, []
        if self._progress.split is not None:
            raise CannotGoOn(tell_split(*self._progress.split, self._job))
        for agent in ended:
            if agent.slot in self._progress.taken and not self._progress.is_ending:
                log = self._engine.log(agent.slot)
                raise CannotGoOn(tell_agent_end(self._progress.lines, agent, self._job, log=log))
        if self._script is not None and (trouble := self._script.trouble):
            raise CannotGoOn(trouble)
        return ended

    def _note(self, lines: Iterable[Line]) -> None:
        for line in lines:
            append(self._path, line)


class WorkerEnds:
    """Sees when workers end: by a handle on each process, so that nobody asks again and again which there are."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._alive: dict[int, Started] = {}
        """Handle -> the worker it is of."""
        self._gone: list[WorkerEnded] = []

    def watch(self, worker: Started) -> None:
        try:
            self._alive[os.pidfd_open(worker.pid)] = worker
        except OSError:  # it has ended already
            self._gone.append(WorkerEnded(t=self._clock(), slot=worker.slot, pid=worker.pid))

    def poll(self) -> list[WorkerEnded]:
        """Those that have ended since the last call. Never blocks."""
        poller = select.poll()
        for handle in self._alive:
            poller.register(handle, select.POLLIN)
        for handle, _ in poller.poll(0):
            worker = self._alive.pop(handle)
            os.close(handle)
            self._gone.append(WorkerEnded(t=self._clock(), slot=worker.slot, pid=worker.pid))
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
