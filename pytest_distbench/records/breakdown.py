"""Where the iterations of a loop go: their parts, as a rank saw them, and of a launch."""

from __future__ import annotations

from typing import Final

from pytest_distbench.records.record import Record

UNACCOUNTED: Final = "unaccounted"
"""What a table calls the time of a loop that no phase has, beside the names of its phases."""


class PhasePlace(Record, frozen=True, kw_only=True):
    """Where a phase lies in a loop, or in a script outside of its timed loops, and how it went on one rank."""

    loop: str
    """Key of the loop's metric; of a script that of its wall time."""
    path: list[str]
    """Names of the phases around it in the loop, the outermost first, and its own."""
    began_at: list[float] = []
    """Of a phase that enters collectives outside of its own parts: when it first began in each timed iteration,
    CLOCK_MONOTONIC seconds of the rank's host; 0 where it did not."""
    host_s: list[float] = []
    """Where its time is the device's: seconds that the host was in it, in each timed iteration."""
    is_apart: bool = False
    """It is beside the step: an evaluation, or what is around one."""


class PartShare(Record, frozen=True, kw_only=True):
    """A part of the iterations of a launch. Lists are by rank, means over iterations: so they add up."""

    path: list[str]
    times_s: list[float]
    waits_s: list[float] = []
    """Of that, what a rank may have waited for the last one to come; empty where it enters no collectives, or its own
    parts do."""
    late_s: list[float] = []
    """By how much each came later than the first to come."""
    hosts_s: list[float] = []
    """Where the times are the device's: seconds of the host."""
    is_apart: bool = False
    """It is beside the iteration, and no part of its time."""

    @property
    def is_top(self) -> bool:
        """Whether it is a part of the iteration itself, and not of another part."""
        return len(self.path) == 1 and not self.is_apart


class Breakdown(Record, frozen=True, kw_only=True):
    """Where the iterations of one loop of a launch go, or its script, which is one iteration."""

    times_s: list[float]
    """Of the whole iteration, by rank, mean over iterations."""
    parts: list[PartShare]

    @property
    def unaccounted_s(self) -> list[float]:
        """By rank, what is in no part. Below 0 where parts on several streams of a device overlap."""
        top = [part.times_s for part in self.parts if part.is_top]
        return [whole - sum(times) for whole, *times in zip(self.times_s, *top, strict=True)]
