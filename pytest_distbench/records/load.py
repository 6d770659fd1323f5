"""What computed on the CPUs of a launch while it was measured."""

from __future__ import annotations

import math

from pytest_distbench.records.record import Record

SHORTEST_WINDOW_S = 0.05
"""Below this the 10 ms ticks of the system's CPU accounting say nothing about other processes."""


class Load(Record, frozen=True, kw_only=True):
    """A stretch of a launch's life, and who wanted its CPUs. *Own* is every process that the launch has started."""

    wall_s: float
    cpus: int
    """That the launch may use."""
    busy_s: float
    """CPU seconds of all processes on them, and of what took the CPUs from this machine, if it is a virtual one."""
    stolen_s: float = 0.0
    """Of these, what was taken from this machine."""
    own_s: float
    """CPU seconds of the own processes, on whatever CPU."""
    ran_s: float = 0.0
    """CPU seconds of their threads, as far as these were seen at the end; 0 where the system does not tell."""
    waited_s: float = 0.0
    """Seconds in which the same threads could have run, and had no CPU."""

    @property
    def foreign_cores(self) -> float | None:
        """Cores that other processes kept busy; None where the stretch is too short to tell."""
        if self.wall_s < SHORTEST_WINDOW_S:
            return None
        return max(0.0, (self.busy_s - self.own_s) / self.wall_s)

    @property
    def _longer(self) -> float | None:
        """How many times as long threads take that could compute all the time; None where that is not known."""
        if self.wall_s < SHORTEST_WINDOW_S or self.ran_s <= 0.0:
            return None
        return (self.ran_s + self.waited_s) / self.ran_s

    @property
    def foreign_wanted(self) -> float | None:
        """Cores that other processes wanted: those they had, and as many times more as the own threads had to wait.

        However many processes want two cores, they use no more than two.
        """
        if self._longer is None or self.foreign_cores is None:
            return None
        return self.foreign_cores * self._longer

    @property
    def crowding(self) -> float | None:
        """How many times as long the own work took because others wanted its CPUs; 1: no longer; None: not known.

        Threads that compute take ``(ran + waited) / ran`` times as long as they would without a wait. Where the own
        ones alone want more CPUs than there are, they wait for each other: that part is not the others'. Nor can the
        whole have been delayed by more than all waits together, which is little where most of it was sleep.
        """
        longer = self._longer
        if longer is None:
            return None
        wanted = max(self.own_s, self.ran_s) * longer / self.wall_s
        by_waits = longer / max(1.0, wanted / self.cpus)
        at_most = self.wall_s / (self.wall_s - self.waited_s) if self.waited_s < self.wall_s else math.inf
        there = self.cpus * self.wall_s
        by_theft = there / (there - self.stolen_s) if self.stolen_s < there else 1.0
        return max(1.0, min(by_waits, at_most)) * by_theft


class CommandUse(Record, frozen=True, kw_only=True):
    """What a command used that starts its processes itself, as its guardian saw it."""

    load: Load | None
    peak_memory_bytes: int
    """Of the largest of its processes."""
    delayed_s: float = 0.0
    """For which a slowdown that was planted had it stand still."""
