"""How far an elastic job has come, by the lines of its timeline: is it stable, is it over, did its body raise?"""

from __future__ import annotations

from pytest_distbench.jobs.engines.contract import CannotGoOn
from pytest_distbench.launch.diagnosis.blame import is_follower
from pytest_distbench.records.timeline import Finished, Joined, Line, Raised, Saved, Started, Stepped, WorkerEnded

STABLE_STEPS = 3
"""So many steps of every node in one generation make a job stable."""
STABLE_LINES = 1
"""Of a script so many lines of steps: from one to the next may be an epoch."""


EXIT_S = 30.0
"""How long agents may take to end after their workers have finished."""

ATTEMPTS = 5
"""So many workers of a slot in a row that come no further: its agent would start others for ever."""

SPLIT_S = 5.0
"""How long a generation may go on beside a later one: agents end its workers meanwhile."""


class Progress:
    """What an elastic job has done so far.

    ``taken`` are the slots whose nodes should train, and so many steps of each of them in one generation make the job
    stable. ``step`` is the highest that anybody has finished, ``saved`` that of the last checkpoint. ``split`` is a
    step of a generation that goes on beside a later one, and that one.
    """

    def __init__(self, most: int, *, stable_steps: int = STABLE_STEPS) -> None:
        self.taken: set[int] = set()
        self.lines: list[Line] = []
        self.step = self.saved = 0
        self.split: tuple[Stepped, int] | None = None
        self._first: dict[int, float] = {}
        """Generation -> when its first step was over."""
        self._forgotten_at = 0.0
        self._most = most
        self._stable_steps = stable_steps
        self._over = -1
        """The generation that a worker which has died took with it."""
        self._steps: dict[int, dict[int, int]] = {}
        """Generation -> slot -> steps since the last change."""
        self._worlds: dict[int, int] = {}
        """Generation -> workers in it."""
        self._finished: dict[int, set[int]] = {}
        self._attempts: dict[int, int] = {}
        """Slot -> workers that were started since the job last came further, or changed."""
        self._reasons: list[Raised] = []

    def heed(self, line: Line) -> None:
        """Take in a line.

        The job cannot go on where the body raised, and not because a peer had gone; or where a worker was started once
        more, and the job comes no further.
        """
        self.lines.append(line)
        if isinstance(line, Started):
            self._try(line)
        elif isinstance(line, Joined):
            self._worlds[line.generation] = line.world_size
        elif isinstance(line, Stepped):
            if line.step > self.step:
                self.step = line.step
                self._attempts.clear()
            self._look_for_split(line)
            if line.t >= self._forgotten_at:
                counts = self._steps.setdefault(line.generation, {})
                counts[line.slot] = counts.get(line.slot, 0) + 1
        elif isinstance(line, Saved):
            self.saved = max(self.saved, line.step)
        elif isinstance(line, Finished):
            self._finished.setdefault(line.generation, set()).add(line.slot)
        elif isinstance(line, Raised) and line.generation is None and not is_follower(line.error):
            self._reasons.append(line)
        elif isinstance(line, Raised) and line.generation is not None and not is_follower(line.error):
            raise CannotGoOn(
                f"the body raised in slot {line.slot}, generation {line.generation}: {line.error.kind}: "
                f"{line.error.message}\n{line.error.traceback}"
            )

    def _try(self, line: Started) -> None:
        attempts = self._attempts[line.slot] = self._attempts.get(line.slot, 0) + 1
        if attempts <= ATTEMPTS:
            return
        why = ". Workers end without an exception: os._exit, a signal, or a lack of memory? Their output is below"
        if (first := self._gone_first()) is not None:
            why = f"; the last time the worker of slot {first} was gone first{why}"
        if self._reasons:
            error = self._reasons[-1].error
            why = f". Before they had a group they raised {error.kind}: {error.message}\n{error.traceback}"
        raise CannotGoOn(
            f"the job comes no further than step {self.step}: the worker of slot {line.slot} was started {attempts} "
            f"times since{why}"
        )

    def _gone_first(self) -> int | None:
        """The slot whose worker ended first in the newest generation; None: unseen."""
        newest = max(self._worlds, default=None)
        members = {line.pid for line in self.lines if isinstance(line, Joined) and line.generation == newest}
        gone = [line for line in self.lines if isinstance(line, WorkerEnded) and line.pid in members]
        return min(gone, key=lambda line: line.t).slot if gone else None

    def _look_for_split(self, line: Stepped) -> None:
        self._first.setdefault(line.generation, line.t)
        newest = max(self._first)
        if line.generation < newest and line.t > self._first[newest] + SPLIT_S:
            self.split = line, newest

    def forget_steps(self, now: float, *, ends_generation: bool = False) -> None:
        """Something has changed: steps until now, heeded or not, do not show that the job is stable.

        Where that ends the generation, steps of it that are told of later do not either.
        """
        self._steps.clear()
        self._attempts.clear()
        self._forgotten_at = now
        self._over = max(self._worlds, default=-1) if ends_generation else -1

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
            and min(counts.values()) >= self._stable_steps
            and newest > self._over
        )
        return newest if is_stable else None

    @property
    def is_ending(self) -> bool:
        """Whether a worker has finished: agents may end now."""
        return bool(self._finished)

    @property
    def has_finished(self) -> bool:
        """Whether all workers of a generation have: there is nothing left to train."""
        return any(len(slots) >= self._worlds.get(g, self._most) for g, slots in self._finished.items())
