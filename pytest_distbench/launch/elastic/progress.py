"""How far an elastic job has come, by the lines of its timeline: is it stable, is it over, did its body raise?"""

from __future__ import annotations

from pytest_distbench.launch.diagnosis.blame import is_follower
from pytest_distbench.launch.elastic.diagnosis import tell_split
from pytest_distbench.launch.elastic.engine import CannotGoOn
from pytest_distbench.records.elastic import ElasticJob
from pytest_distbench.records.timeline import Finished, Joined, Line, Raised, Stepped

STABLE_STEPS = 3
"""So many steps of every node in one generation make a job stable."""
SPLIT_S = 5.0
"""How long a generation may go on beside a later one: agents end its workers meanwhile."""


class Progress:
    """What an elastic job has done so far.

    Args:
        job: of which.

    Attributes:
        taken: slots whose nodes should train.
        changed_t: when the last change was carried out: what a worker did until then says nothing of what it came to.
        lines: that were heeded.
        step: the highest that anybody has finished.
    """

    def __init__(self, job: ElasticJob) -> None:
        self.taken: set[int] = set()
        self.changed_t = 0.0
        self.lines: list[Line] = []
        self.step = 0
        self._job = job
        self._steps: dict[int, dict[int, int]] = {}
        """Generation -> slot -> steps since the last change."""
        self._worlds: dict[int, int] = {}
        """Generation -> workers in it."""
        self._first: dict[int, float] = {}
        """Generation -> when its first step was over."""
        self._finished: dict[int, set[int]] = {}

    def heed(self, line: Line) -> None:
        """Take in a line.

        Raises:
            CannotGoOn: it says that the body raised, and not because a peer had gone; or that the job is split.
        """
        self.lines.append(line)
        if isinstance(line, Joined):
            self._worlds[line.generation] = line.world_size
        elif isinstance(line, Stepped):
            self.step = max(self.step, line.step)
            self._first.setdefault(line.generation, line.t)
            self._check_whole(line)
            if line.t >= self.changed_t:
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

    def forget_steps(self) -> None:
        """Something has changed: steps until now do not show that the job is stable."""
        self._steps.clear()

    @property
    def stable_generation(self) -> int | None:
        """The generation in which all nodes that should be there have stepped since the last change."""
        if not self._steps:
            return None
        newest = max(self._steps)
        counts = self._steps[newest]
        is_stable = (
            set(counts) == self.taken
            and self._worlds.get(newest) == len(self.taken)
            and min(counts.values()) >= STABLE_STEPS
        )
        return newest if is_stable else None

    @property
    def is_ending(self) -> bool:
        """Whether a worker has finished: agents may end now."""
        return bool(self._finished)

    @property
    def has_finished(self) -> bool:
        """Whether all workers of a generation have: there is nothing left to train."""
        return any(len(slots) >= self._worlds.get(g, self._job.most) for g, slots in self._finished.items())
