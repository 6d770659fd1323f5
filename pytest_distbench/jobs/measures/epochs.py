"""The course of an elastic run: its epochs, one after the other, and the trace of its learning rate."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from statistics import median
from typing import Literal

from pytest_distbench.jobs.measures.history import History
from pytest_distbench.records.elastic import ChangeResult, EpochResult, RateChange
from pytest_distbench.records.metric import Scalar
from pytest_distbench.records.timeline import Stepped


def epoch_results(history: History, changes: Sequence[ChangeResult]) -> list[EpochResult]:
    """One per epoch. Together they hold all the time between the run's first step and its last.

    A change belongs to the epoch in which the job stepped again.
    """
    first = history.first_step_t
    if first is None:
        return []
    steps: dict[int, list[tuple[int, list[Stepped]]]] = {}
    for _, generation, lines in history.passes():
        worker = history.workers[generation, lines[0].slot]
        if (epoch := worker.epoch(lines[0])) is not None:
            steps.setdefault(epoch, []).append((generation, lines))
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
                loss=mean_of("loss", [line for _, lines in passes for line in lines]),
                accuracy=mean_of("accuracy", [line for _, lines in passes for line in lines]),
                top5=mean_of("top5", [line for _, lines in passes for line in lines]),
                lr=passes[-1][1][0].lr,
                changes=[c.index for c in mine],
                stall_s=sum(c.stall_s or 0.0 for c in mine),
                steps_redone=sum(c.steps_redone for c in mine),
            )
        )
        begin = end
    return found


def mean_of(name: Literal["loss", "accuracy", "top5"], lines: Sequence[Stepped]) -> float | None:
    """Mean over samples, of those steps that told: ranks have shares of a step's samples that differ by one at most.

    Steps whose samples nobody knows count alike.
    """
    told = [(getattr(line, name), (line.samples or 1) / line.world_size) for line in lines]
    told = [(value, share) for value, share in told if value is not None]
    weight = sum(share for _, share in told)  # fsum: the order is that of slots, and a rank may have another one now
    return fsum(value * share for value, share in told) / weight if weight else None


def rates_at(history: History) -> list[tuple[dict[str, Scalar], float]]:
    """The median learning rate at each world size, and at each of every epoch: a rule may be of both."""
    found: dict[tuple[int, int | None], list[float]] = {}
    for _, generation, lines in history.passes():
        epoch = history.workers[generation, lines[0].slot].epoch(lines[0])
        for at in {(lines[0].world_size, None), (lines[0].world_size, epoch)}:
            found.setdefault(at, []).extend(line.lr for line in lines if line.lr is not None)
    return [
        ({"nodes": nodes} if epoch is None else {"epoch": epoch, "nodes": nodes}, median(rates))
        for (nodes, epoch), rates in found.items()
        if rates
    ]


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
