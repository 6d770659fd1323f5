"""Where the iterations of a loop go, how fast they are, and what a trace tells beside itself.

The names of rates are those that ranks and the fixture ``scaling`` write, and tables read.
"""

from __future__ import annotations

from statistics import fmean
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


COMMUNICATION = ("on", "off")
"""Whether the ranks send gradients: without it, a step takes what it computes. The first is the default."""

RATE = "samples_per_second"
RATE_UNCERTAINTY = f"{RATE}_uncertainty"
RATE_JITTER = f"{RATE}_jitter"

SAMPLES = "samples_per_step"
"""Of all ranks in an iteration of the loop."""

RATE_OF = "loop"
"""Fact of the rate: the loop that was timed."""
RATE_COMMUNICATION = "communication"
"""Fact: one of :data:`COMMUNICATION`."""
RATE_RANKS_PER_NODE = "ranks_per_node"
"""Fact: of the ranks, on this rank's host."""

EFFICIENCY = "scaling_efficiency"
"""Derived of the runs, at so many ``workers``; where the call of the fixture has a name, that stands before it."""


THIS_TREE = "this tree"
"""The name of the side that is judged."""

WHOLE = ""
"""Key of what is no loop: all of a body."""


def name_in_trace(name: str) -> str:
    """What a part of a body is called in a trace: torch 2.13 writes names as they are, and quotes break its JSON."""
    return name.replace('"', "'").replace("\\", "/")


def iteration_name(loop: str, index: int) -> str:
    """What an iteration of a loop is called in a trace."""
    return name_in_trace(f"{loop} #{index}")


class BusyCommunication(Record, frozen=True, kw_only=True):
    """Of the iterations of a loop under the profiler: how long collectives were under way, hidden or not."""

    ranks_s: list[float]
    """By rank, seconds of an iteration in which at least one was; mean over iterations."""
    totals_s: dict[str, float]
    """By the name of a collective, seconds in an iteration, mean over ranks. What is under way at once counts twice."""
    iterations: int
    iteration_s: float
    """Of an iteration, mean over ranks: the profiler makes it longer."""

    @property
    def time_s(self) -> float:
        return fmean(self.ranks_s)

    @property
    def share(self) -> float:
        """Of the iteration under the profiler."""
        return self.time_s / self.iteration_s


class TracedSide(Record, frozen=True, kw_only=True):
    name: str
    """:data:`THIS_TREE`, or what it was compared with."""
    busy: dict[str, BusyCommunication] = {}
    """By the key of a loop's metric; none where no collective was seen in it."""


class CaseTrace(Record, frozen=True, kw_only=True):
    """The trace of a case, and why it is not whole."""

    path: str = ""
    """Empty: there is none."""
    sides: list[TracedSide] = []
    """That it holds; this tree's is the last."""
    why_not: str = ""
    """Why there is none, or one side is missing; empty: it is whole."""

    @property
    def busy(self) -> dict[str, BusyCommunication]:
        """Of this tree, by the key of a loop's metric."""
        return next((side.busy for side in self.sides if side.name == THIS_TREE), {})
