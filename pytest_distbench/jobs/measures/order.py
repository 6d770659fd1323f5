"""Has each epoch an order of its own, of a training that shuffles? An epoch behind a load may be in that of another.

A sampler that was not told its epoch anew goes through the order of epoch 0 again: every sample is trained on once, so
that no count of samples tells. A training whose epochs all have one order does not shuffle, and nothing is told of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from pytest_distbench.jobs.measures.history import History

ORDER = "epochs_in_one_order"

_CHANCE = math.log(1e-9)
"""Orders that are equal by chance with at least this probability say nothing: those of a few large steps."""

_Steps = Sequence[frozenset[int]]
"""Samples of all ranks, step by step."""


def epochs_in_one_order(history: History) -> tuple[int, str]:
    """Epochs behind a load that have the order of an earlier epoch, while others have not; and the first, in words."""
    epochs, resumed = _epochs(history)
    numbers = sorted(epochs)
    earlier = {
        number: next((n for n in numbers if n < number and _is_same(epochs[n], epochs[number])), None)
        for number in sorted(resumed)
    }
    found = [(number, same) for number, same in earlier.items() if same is not None]
    pairs = [*itertools.pairwise(numbers), *((a, b) for b in resumed for a in numbers if a != b)]
    if not found or all(_is_same(epochs[a], epochs[b]) is not False for a, b in pairs):
        return 0, ""
    number, same = found[0]
    return len(found), (
        f"epoch {number}, which a generation went on with behind a load, has the samples in the order of epoch {same}, "
        "and other epochs have not: was the sampler told its epoch before it was asked for samples?"
    )


def _epochs(history: History) -> tuple[dict[int, list[frozenset[int]]], set[int]]:
    """Epoch -> its steps that counted; and the epochs that a generation behind a load has begun with."""
    epochs: dict[int, list[frozenset[int]]] = {}
    resumed = set()
    members = {generation: history.members(generation).values() for generation in history.generations}
    before: int | None = None
    for step, generation in history.kept().items():
        workers = [worker for worker in members[generation] if step in worker.batches]
        if not workers:
            continue
        epoch = workers[0].batches[step].epoch
        epochs.setdefault(epoch, []).append(frozenset(s for worker in workers for s in worker.samples(step)))
        if before is not None and generation != before:
            resumed.add(epoch)
        before = generation
    return epochs, resumed


def _is_same(one: _Steps, other: _Steps) -> bool | None:
    """Whether two epochs have one order, as far as can be seen of steps of different sizes; None: nobody can know."""
    seen, ways = 0, 0.0
    for a, b in _blocks(one, other):
        if a != b:
            return False
        seen += len(a)
        ways += math.lgamma(len(a) + 1)
    is_whole = seen == sum(map(len, one)) == sum(map(len, other))
    return True if is_whole and ways - math.lgamma(seen + 1) < _CHANCE else None


def _blocks(one: _Steps, other: _Steps) -> Iterator[tuple[set[int], set[int]]]:
    """Samples between places in the epoch at which a step of both was over."""
    a: set[int] = set()
    b: set[int] = set()
    rest = iter(other)
    for step in one:
        a |= step
        while len(b) < len(a) and (later := next(rest, None)) is not None:
            b |= later
        if len(a) == len(b):
            yield a, b
            a, b = set(), set()
