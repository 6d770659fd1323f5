"""Was every sample of every epoch trained on once, as was asked for, and has each epoch an order of its own?

Samples are counted over the passes that counted. The count says nothing about a sampler that was not told its epoch
anew: it goes through the order of epoch 0 again. A training whose epochs all have one order does not shuffle, and
nothing is told of it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_distbench.jobs.measures.history import History
from pytest_distbench.records.timeline import Wanted

_DROPPED = 0.1
"""Share of the samples that a body may leave out because its batches do not come out even on so many nodes."""


@dataclass(frozen=True, slots=True)
class SampleCount:
    """What became of the samples.

    Skipped are samples of an epoch that nobody trained on, over all epochs; repeated are further trainings on a sample
    in the same epoch. The first of each is told in words.
    """

    skipped: int
    repeated: int
    first_skipped: str = ""
    first_repeated: str = ""


def count_samples(history: History) -> SampleCount:
    """Compare what was trained on with what ``training.batches`` was asked for, epoch by epoch."""
    num_epochs, num_samples, shrunk = _asked(history)
    known = set(range(num_samples))
    epochs: dict[int, Counter[int]] = {}
    where: dict[tuple[int, int], int] = {}
    for step, generation in history.kept().items():
        for worker in history.members(generation).values():
            batch = worker.batches.get(step)
            if batch is None:
                continue
            for sample in worker.samples(step):
                epochs.setdefault(batch.epoch, Counter())[sample] += 1
                where[batch.epoch, sample] = step
    never = [epoch for epoch in range(num_epochs) if epoch not in epochs]
    skipped = len(never) * len(known)
    repeated = 0
    first_skipped = first_repeated = ""
    for epoch, counts in sorted(epochs.items()):
        missing = sorted(known - counts.keys())
        again = sorted(sample for sample, count in counts.items() if count > 1)
        skipped += len(missing)
        repeated += sum(counts[sample] - 1 for sample in again)
        if missing and not first_skipped:
            first_skipped = f"epoch {epoch}: nobody trained on sample {missing[0]}, nor on {len(missing) - 1} others"
        if again and not first_repeated:
            first_repeated = (
                f"epoch {epoch}: sample {again[0]} was trained on {counts[again[0]]} times, the last time in step "
                f"{where[epoch, again[0]]}, and {len(again) - 1} others were repeated too"
            )
    if never:
        told = f"{len(never)} of {num_epochs} epochs that training.batches was asked for were never begun"
        first_skipped = f"{told}; {first_skipped}" if first_skipped else told
    if shrunk and first_skipped:
        first_skipped = f"{shrunk}: {first_skipped}"
    return SampleCount(skipped, repeated, first_skipped, first_repeated)


def _asked(history: History) -> tuple[int, int, str]:
    """Epochs and samples that are to be trained on, and in words where the last generation asked for fewer of them.

    A generation that ends on purpose has the last word. One that asks for the epoch under way alone, as a body does
    that asks for one after the other, may have come further before it was lost than a later one has to.
    """
    words = {(line.generation, line.slot): line for line in history.of(Wanted)}  # of each its last word
    last = max((generation for generation, _ in words), default=None)
    asked = [line for (generation, _), line in words.items() if generation == last]
    epochs = max((line.epochs for line in asked), default=0)
    samples = max((line.samples for line in asked), default=0)
    earlier = [line for (generation, _), line in words.items() if generation != last and not line.is_end]
    if any(line.is_end for line in asked):
        earlier = []
    more_epochs = max((line.epochs for line in earlier if line.epochs > line.epoch + 1), default=0)
    more_samples = max((line.samples for line in earlier if samples < (1 - _DROPPED) * line.samples), default=0)
    told = [
        f"{before} {what} before, and for {now} in generation {last}"
        for what, before, now in (("epochs", more_epochs, epochs), ("samples", more_samples, samples))
        if before > now
    ]
    shrunk = f"training.batches was asked for {', and for '.join(told)}" if told else ""
    return max(epochs, more_epochs), max(samples, more_samples), shrunk


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
