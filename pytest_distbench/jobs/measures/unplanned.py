"""Generations that no change of the plan explains: a worker died of itself, or its node counted as lost. Pure."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from pytest_distbench.jobs.measures.history import History
from pytest_distbench.records.elastic import START
from pytest_distbench.records.timeline import Changed, Stable


@dataclass(frozen=True)
class Unplanned:
    """A generation that nobody asked for, after the worker in a slot was gone; None: unseen.

    It had met so long after the run's first step. Its stall is from the last step before to the first one of it, of the
    survivor that waited longest.
    """

    generation: int
    at_s: float
    slot: int | None
    stall_s: float

    def __str__(self) -> str:
        who = "" if self.slot is None else f": the worker of slot {self.slot} was gone first"
        return (
            f"generation {self.generation} began {self.at_s:.1f} s after the first step, and no change of the plan "
            f"asked for it{who}. It cost {self.stall_s:.1f} s, which are in lost_fraction"
        )


def unplanned(history: History) -> list[Unplanned]:
    """Those of a run, in their order. What happens from a change until the job is stable again is that change's."""
    first = history.first_step_t
    found = []
    for before, after in itertools.pairwise(history.generations):
        met = min(worker.joined.t for worker in history.members(after).values())
        if first is None or _is_explained(history, met):
            continue
        old, new = history.members(before), history.members(after)
        waits = [
            new[slot].steps[0].t - old[slot].steps[-1].t
            for slot in old.keys() & new.keys()
            if old[slot].steps and new[slot].steps
        ]
        gone = {slot: worker.ended for slot, worker in old.items() if worker.ended is not None and worker.ended <= met}
        found.append(
            Unplanned(
                generation=after,
                at_s=met - first,
                slot=min(gone, key=lambda slot: gone[slot]) if gone else None,
                stall_s=max(waits, default=0.0),
            )
        )
    return found


def _is_explained(history: History, t: float) -> bool:
    """Whether the job was on its way, from its start or a change to the moment it was stable."""
    stable = {line.index: line.t for line in history.of(Stable)}
    begun = [(START, 0.0), *((line.index, line.t) for line in history.of(Changed))]
    return any(begin <= t <= stable.get(index, t) for index, begin in begun)
