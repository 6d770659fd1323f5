"""Node: one worker of an elastic job as its training sees it, with the job's timeline."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_distbench.records.plan import Job, LaunchPlan
from pytest_distbench.records.timeline import Changed, Line, Progress, append, read_timeline
from pytest_distbench.worker.clock.host import HostClock
from pytest_distbench.worker.context import RankContext
from pytest_distbench.worker.fingerprint import Watch
from pytest_distbench.worker.line import NoLine


class _Timeline(NoLine):
    """The line of a worker of an elastic job: what it shows goes into the job's timeline."""

    def __init__(self, timeline: Path, slot: int) -> None:
        self._timeline = timeline
        self._slot = slot

    def progress(self, text: str) -> None:
        """Note a line that rank 0 wants to be shown."""
        append(self._timeline, Progress(t=HostClock.monotonic(), slot=self._slot, text=text))


class Node(RankContext):
    """All of :class:`~pytest_distbench.worker.elastic.life.ElasticRank` but the training that it makes."""

    def __init__(self, plan: LaunchPlan, slot: int, generation: int) -> None:
        line = _Timeline(plan.files.timeline, slot)
        environment = {**os.environ, "LOCAL_RANK": str(slot)}  # all nodes share this host's devices
        super().__init__(plan, line, environment, watch=Watch(is_on=False))
        self.slot = slot
        self.generation = generation
        self._job = plan.expect(Job).job
        self._files = plan.files

    def changes_made(self) -> int:
        return sum(isinstance(line, Changed) for line in read_timeline(self._files.timeline))

    def note(self, line: Line) -> None:
        append(self._files.timeline, line)
