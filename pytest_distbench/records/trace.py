"""What a trace of a case tells beside itself: how busy its ranks were with communication."""

from __future__ import annotations

from statistics import fmean

from pytest_distbench.records.record import Record

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
        """Mean over ranks."""
        return fmean(self.ranks_s)

    @property
    def share(self) -> float:
        """Of the iteration under the profiler."""
        return self.time_s / self.iteration_s


class TracedSide(Record, frozen=True, kw_only=True):
    """The launch of one side."""

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
