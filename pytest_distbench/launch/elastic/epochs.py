"""The epochs of an elastic run, one after the other: how long each took, on how many nodes, and what it learned."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_distbench.launch.elastic.changes import first_step_t
from pytest_distbench.launch.elastic.history import History
from pytest_distbench.records.elastic import ChangeResult, EpochResult
from pytest_distbench.records.timeline import Stepped


def epoch_results(history: History, changes: Sequence[ChangeResult]) -> list[EpochResult]:
    """One per epoch. Together they hold all the time between the run's first step and its last.

    A change belongs to the epoch in which the job stepped again.
    """
    first = first_step_t(history)
    if first is None:
        return []
    steps: dict[int, list[tuple[int, list[Stepped]]]] = {}
    for number, generation, lines in history.passes():
        batches = [w.batches[number].epoch for w in history.members(generation).values() if number in w.batches]
        if batches:
            steps.setdefault(batches[0], []).append((generation, lines))
    found = []
    begin = first
    for epoch, passes in sorted(steps.items()):
        end = max(line.t for _, lines in passes for line in lines)
        mine = [c for c in changes if begin < first + c.at_s + (c.recovery_s or 0.0) <= end]
        found.append(
            EpochResult(
                epoch=epoch,
                seconds=end - begin,
                nodes=list(dict.fromkeys(lines[0].world_size for _, lines in passes)),
                loss=_mean_loss([line for _, lines in passes for line in lines]),
                lr=passes[-1][1][0].lr,
                changes=[c.index for c in mine],
                stall_s=sum(c.stall_s or 0.0 for c in mine),
                steps_redone=sum(c.steps_redone for c in mine),
            )
        )
        begin = end
    return found


def _mean_loss(lines: Sequence[Stepped]) -> float | None:
    """Over samples: the ranks of a step have shares of its samples that differ by one at most."""
    told = [(line.loss, line.samples / line.world_size) for line in lines if line.loss is not None]
    weight = sum(share for _, share in told)
    return sum(loss * share for loss, share in told) / weight if weight else None
