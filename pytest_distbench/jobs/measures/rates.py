"""The trace of the learning rate, step by step, as the passes that counted left it; kept where it changes."""

from __future__ import annotations

from pytest_distbench.jobs.measures.history import History
from pytest_distbench.records.elastic import RateChange

_MOST_CHANGES = 10_000
"""So many changes of it are kept: a schedule may change it at every step."""


def rate_changes(history: History) -> list[RateChange]:
    """The first step that told of a rate, and each with another one than the step before."""
    found: list[RateChange] = []
    for step, generation, lines in history.passes():
        told = next((line for line in lines if line.lr is not None), None)
        if told is None or told.lr is None or (found and (found[-1].lr, found[-1].nodes) == (told.lr, told.world_size)):
            continue
        epoch = history.workers[generation, told.slot].epoch(told)
        found.append(RateChange(step=step, epoch=epoch, nodes=told.world_size, lr=told.lr))
        if len(found) == _MOST_CHANGES:
            break
    return found
