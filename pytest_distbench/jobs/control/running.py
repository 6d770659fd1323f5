"""An elastic job that runs: what it does is noted in its timeline, and it is told when it cannot go on."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from pytest_distbench.errors import ReadingError
from pytest_distbench.jobs.control.diagnosis import tell_agent_end, tell_split, tell_unstable
from pytest_distbench.jobs.control.progress import STABLE_LINES, STABLE_STEPS, Progress
from pytest_distbench.jobs.control.script import ScriptWatch
from pytest_distbench.jobs.engines.contract import CannotGoOn, Engine
from pytest_distbench.records.elastic import Change, ElasticJob
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.timeline import (
    AgentEnded,
    Began,
    Changed,
    Line,
    Stable,
    Started,
    TimelineReader,
    WorkerEnded,
    append,
)


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
        """End all its nodes."""
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
        """Carry out a change: of these slots, so that nodes in those that are expected train."""
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
        """Wait for the end of a worker, too."""
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
        """Let go of all handles."""
        while self._alive:
            os.close(self._alive.popitem()[0])
