"""Was what a training had learned still there behind a load? Loss and accuracy there, against the checkpoint's. Pure.

A backstop behind the digests of ``ledger.py``: it sees what is lost on a way that has no digest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from statistics import fmean, stdev
from typing import Literal

from pytest_distbench.jobs.measures.epochs import mean_of
from pytest_distbench.jobs.measures.history import History
from pytest_distbench.records.timeline import Stepped

MOST_LOST = 0.6
"""Of what was learned, that a change may lose. Made anew, weights lose all of it: 0.9 and more. Of 200 healthy changes
none is beyond it (``benchmarks/elastic_plans.py``)."""

_STEPS = 5
"""Before and behind a load whose mean is taken: the loss of one batch says little."""

_LEARNED = 8.0
"""Standard deviations between one step's loss and the next's that a training must have learned before it is judged.
So many of a mean, and a quarter of it, must a loss lie above all means before a load to be worse than nothing learned:
fewer nodes make a smaller, noisier batch."""

_ABOVE = 0.25
"""Of that highest mean, see :data:`_LEARNED`."""


@dataclass(frozen=True, slots=True)
class Relapse:
    """What a load lost, as a share of what had been learned; 0: nothing, or too little had been."""

    share: float = 0.0
    told: str = ""


def worst_relapse(history: History) -> Relapse:
    """That of the load behind which most of what had been learned was gone."""
    found = [Relapse()]
    kept = {(number, generation): mean_of("loss", lines) for number, generation, lines in history.passes()}
    losses = {number: loss for (number, _), loss in kept.items() if loss is not None}
    begin = _mean([losses.get(step) for step in range(1, 1 + _STEPS)])
    for generation in history.generations:
        step = history.resumed_at(generation)
        before = [losses.get(number) for number in range(step - _STEPS + 1, step + 1)]
        after = _mean(_first_of(history, generation, "loss"))
        at_checkpoint = _mean(before)
        if step <= _STEPS or begin is None or at_checkpoint is None or after is None:
            continue
        learned = begin - at_checkpoint
        earlier = [losses.get(number) for number in range(1, step + 1)]
        highest, noise = _highest_mean(earlier), _noise(earlier)
        if after > highest + max(_LEARNED * noise / sqrt(_STEPS), _ABOVE * abs(highest)):
            told = (
                f"generation {generation} went on behind the checkpoint of step {step} with a loss of {after:.4g}, and "
                f"before it the loss had never been above {highest:.4g} (means of {_STEPS} steps)"
            )
            found.append(Relapse(1.0, told))
            continue
        if learned <= 0 or learned < _LEARNED * stdev([loss for loss in before if loss is not None]):
            continue
        share = max(0.0, (after - at_checkpoint) / learned)
        told = (
            f"the loss had come down from {begin:.4g} to {at_checkpoint:.4g} at the checkpoint of step {step}, and "
            f"generation {generation} went on behind it with {after:.4g} (means of {_STEPS} steps)"
        )
        found.append(Relapse(share, told))
    return max(found, key=lambda relapse: relapse.share)


def accuracy_lost(history: History) -> float | None:
    """The most that the accuracy fell by at a load: means of five steps before and behind it.

    None: steps do not tell of it, or too few.
    """
    told = {number: mean_of("accuracy", lines) for number, _, lines in history.passes()}
    found = []
    for generation in history.generations:
        step = history.resumed_at(generation)
        before = _mean([told.get(number) for number in range(step - _STEPS + 1, step + 1)])
        after = _mean(_first_of(history, generation, "accuracy"))
        found += [before - after] if before is not None and after is not None else []
    return max(found, default=None)


def _highest_mean(losses: Sequence[float | None]) -> float:
    """Of so many steps in a row, as far as all of them are known."""
    means = (_mean(losses[i : i + _STEPS]) for i in range(len(losses) - _STEPS + 1))
    return max(mean for mean in means if mean is not None)


def _noise(losses: Sequence[float | None]) -> float:
    """The standard deviation of a step's loss, seen in its differences from step to step: learning is none of it."""
    squares = [(b - a) ** 2 for a, b in pairwise(losses) if a is not None and b is not None]
    return sqrt(fmean(squares) / 2)


def _first_of(history: History, generation: int, name: Literal["loss", "accuracy"]) -> list[float | None]:
    """What a generation's first steps tell."""
    steps: dict[int, list[Stepped]] = {}
    for worker in history.members(generation).values():
        for line in worker.steps[:_STEPS]:
            steps.setdefault(line.step, []).append(line)
    return [mean_of(name, lines) for _, lines in sorted(steps.items())][:_STEPS]


def _mean(losses: Sequence[float | None]) -> float | None:
    """None where one is missing, or there are too few."""
    known = [loss for loss in losses if loss is not None]
    return fmean(known) if len(known) == len(losses) == _STEPS else None
