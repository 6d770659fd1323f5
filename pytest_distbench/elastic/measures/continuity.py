"""Did each generation continue where it should: its step, its samples, and what it had learned? Pure.

Every sample of every epoch is to be trained on once, and each epoch has an order of its own. Samples are counted over
the passes that counted. Counts do not show a sampler without ``set_epoch``: it repeats the order of epoch 0. A training
whose epochs all have one order does not shuffle, and is not reported.

What was learned is compared at each load, by loss and accuracy before and after it: a backstop for the digests of
``ledger.py``, which sees what is lost on a way that has no digest.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import Literal

from pytest_distbench.elastic.measures.history import History, mean_of
from pytest_distbench.elastic.records import ElasticJob
from pytest_distbench.records.kinds import grouped

_NAMED = "Wrong epoch on resume"
_TOGETHER = "Epoch and step must be saved and restored together, with the place in the epoch"


def explain_wrong_resume(history: History, job: ElasticJob) -> str:
    """Why a generation continued at a wrong step or epoch, with the remedy, or ""."""
    every = history.generations
    for before, after in ((every[:i], every[i]) for i in range(1, len(every))):
        if why := _went_too_far_back(history, job, before, after) or _changed_epoch(history, before, after):
            return f"{_NAMED}: {why}"
    return ""


def optimizers_that_forgot(history: History) -> int:
    """Number of generations whose optimizers began with less state than earlier ones had, or with none."""
    known = 0
    found = 0
    for generation in history.generations:
        remembered = [w.remembered for w in history.members(generation).values() if w.remembered is not None]
        found += any(min(known, line.after) > line.before for line in remembered) and history.resumed_at(generation) > 0
        known = max([known, *(line.after for line in remembered)])
    return found


def _went_too_far_back(history: History, job: ElasticJob, before: list[int], after: int) -> str:
    resumed = history.resumed_at(after)
    highest = max(s.step for g in before for w in history.members(g).values() for s in w.steps)
    first = min(history.resumed_at(generation) for generation in before)
    saved = max((line.step for line in history.saved if line.generation in before), default=None)
    if job.steps is None:
        torn = any(w.loaded is not None and w.loaded.torn for w in history.members(after).values())
        if saved is None or resumed >= saved or torn:
            return ""
        return (
            f"generation {after} continued after step {resumed}, and the newest checkpoint was of step {saved}. Only "
            f"rank.training(...) may set step, epoch or position, and all nodes must see the checkpoints"
        )
    redone = highest - resumed
    due = job.checkpoint_every is None or redone > job.checkpoint_every
    if resumed <= first and due and redone > 0:
        remedy = (
            "If no snapshot was due yet, say checkpoint_every="
            if job.checkpoint_every is None
            else f"One is due every {job.checkpoint_every} steps (checkpoint_every=)"
        )
        return (
            f"the training had reached step {highest}, and after the change it started from step {resumed + 1} again. "
            f"Does the script load its snapshot from a path that all nodes see, with step and epoch? {remedy}"
        )
    if job.checkpoint_every is not None and redone > job.checkpoint_every:
        return (
            f"the training had reached step {highest}, and after the change it continued at step {resumed + 1}: that "
            f"is {redone} steps back, and a checkpoint is due every {job.checkpoint_every} (checkpoint_every=). Is "
            f"the snapshot written that often, and is its epoch or step restored with it?"
        )
    return ""


def _changed_epoch(history: History, before: list[int], after: int) -> str:
    """Why the epoch of a generation's first step is wrong, or "".

    A redone step belongs to its former epoch, a new one to that of the last step or the next. Step numbers of a script
    that restarts its count in each epoch are made of its epochs, and show nothing.
    """
    was: dict[int, int | None] = {}
    for generation in before:
        for worker in history.members(generation).values():
            was |= {step.step: worker.epoch(step) for step in worker.steps}
    for worker in history.members(after).values():
        if not worker.steps:
            continue
        step = worker.steps[0]
        epoch = worker.epoch(step)
        known = was.get(step.step)
        if epoch is not None and known is not None and epoch != known:
            return f"step {step.step} was of epoch {known}, and after the change it is of epoch {epoch}. {_TOGETHER}"
        previous = was.get(step.step - 1)
        if epoch is not None and previous is not None and not previous <= epoch <= previous + 1:
            return (
                f"step {step.step - 1} was of epoch {previous}, and the next, after the change, is of epoch {epoch}. "
                f"{_TOGETHER}"
            )
    return ""


_DROPPED = 0.1
"""Share of the samples that an epoch may lack, because they do not divide evenly into batches of so many nodes."""


def count_samples(history: History) -> tuple[tuple[int, str], tuple[int, str]]:
    """Numbers of samples that were skipped and that were repeated, each with the first case in words.

    Skipped are samples of an epoch that nobody trained on, over all epochs; repeated are further trainings on a sample
    in the same epoch.
    """
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
        message = f"{len(never)} of {num_epochs} epochs that training.batches was asked for never started"
        first_skipped = f"{message}; {first_skipped}" if first_skipped else message
    if shrunk and first_skipped:
        first_skipped = f"{shrunk}: {first_skipped}"
    return (skipped, first_skipped), (repeated, first_repeated)


def _asked(history: History) -> tuple[int, int, str]:
    """(epochs, samples per epoch) that bodies asked ``training.batches`` for; and words if the last asked for fewer.

    A generation that ended on purpose decides. Earlier ones do not count that asked for the current epoch alone, as a
    body does that asks for one after the other.
    """
    words = {(line.generation, line.slot): line for line in history.of("wanted")}  # of each its last word
    last = max((generation for generation, _ in words), default=None)
    asked = [line for (generation, _), line in words.items() if generation == last]
    epochs = max((line.epochs for line in asked), default=0)
    samples = max((line.samples for line in asked), default=0)
    earlier = [line for (generation, _), line in words.items() if generation != last and not line.is_end]
    if any(line.is_end for line in asked):
        earlier = []
    more_epochs = max((line.epochs for line in earlier if line.epochs > line.epoch + 1), default=0)
    more_samples = max((line.samples for line in earlier if samples < (1 - _DROPPED) * line.samples), default=0)
    fewer = [
        f"{before} {what} before, and for {now} in generation {last}"
        for what, before, now in (("epochs", more_epochs, epochs), ("samples", more_samples, samples))
        if before > now
    ]
    shrunk = f"training.batches was asked for {', and for '.join(fewer)}" if fewer else ""
    return max(epochs, more_epochs), max(samples, more_samples), shrunk


ORDER = "epochs_in_one_order"

_CHANCE = math.log(1e-9)
"""Log of a probability; orders that are equal by chance more probably, as of a few large steps, show nothing."""

_Steps = Sequence[frozenset[int]]  # samples of all ranks, step by step


def epochs_in_one_order(history: History) -> tuple[int, str]:
    """Number of epochs after a load in the order of an earlier epoch, if others differ; and the first, in words."""
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
        f"epoch {number}, continued after a load, has the samples in the order of epoch {same}, and other epochs do "
        f"not: call sampler.set_epoch before samples are drawn"
    )


def _epochs(history: History) -> tuple[dict[int, list[frozenset[int]]], set[int]]:
    """Epoch -> samples of each of its steps that counted; and the epochs in which a new generation continued."""
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
    """Whether two epochs have samples in the same order, compared where steps of both end; None if unknown."""
    seen, ways = 0, 0.0
    a: set[int] = set()  # samples between places in the epoch at which a step of both was over
    b: set[int] = set()
    rest = iter(other)
    for step in one:
        a |= step
        while len(b) < len(a) and (later := next(rest, None)) is not None:
            b |= later
        if len(a) == len(b):
            if a != b:
                return False
            seen += len(a)
            ways += math.lgamma(len(a) + 1)
            a, b = set(), set()
    is_whole = seen == sum(map(len, one)) == sum(map(len, other))
    return True if is_whole and ways - math.lgamma(seen + 1) < _CHANCE else None


REORDERED = "samples_reordered"


def samples_reordered(history: History) -> tuple[int, str]:
    """Number of generations that continue an epoch in another order; and the first, in words.

    Steps that are done twice must have the same samples both times, of all ranks or at least of rank 0: its part may
    follow the number of nodes. And samples of rank 0 that were shuffled before a change must not ascend after it.
    """
    found = []
    known: set[bool | None] = set()
    of_ranks = {g: _samples(history, g) for g in history.generations}
    for generation, after in of_ranks.items():
        resumed = history.resumed_at(generation)
        why = ""
        before = max((g for g in of_ranks if g < generation and resumed + 1 in of_ranks[g]), default=None)
        if before is not None and _redone_otherwise(of_ranks[before], after, resumed + 1):
            why = f"from step {resumed + 1} on, it has other samples than generation {before} had"
        by_epoch = itertools.groupby(after.values(), key=lambda step: step[0])
        ascends = [_ascends([set(ranks[0]) for _, ranks in steps]) for _, steps in by_epoch]
        if not why and known - {None} == {False} and any(ascends):
            why = "its samples ascend, and were shuffled before the change"
        known |= {*ascends}
        if why:
            found.append(f"generation {generation}, which continues after step {resumed}: {why}")
    return len(found), found[0] if found else ""


_OfRanks = tuple[int, list[list[int]]]  # the epoch of a step, and its samples by rank


def _samples(history: History, generation: int) -> dict[int, _OfRanks]:
    """Steps that all ranks of a generation took: one that was cut short may lack what a rank drew."""
    workers = sorted(history.members(generation).values(), key=lambda worker: worker.joined.rank)
    taken = [{step.step for step in worker.steps} & worker.batches.keys() for worker in workers]
    common = set.intersection(*taken) if len(workers) == history.world_size(generation) else set()
    return {step: (workers[0].batches[step].epoch, [w.samples(step) for w in workers]) for step in sorted(common)}


def _redone_otherwise(before: dict[int, _OfRanks], after: dict[int, _OfRanks], first: int) -> bool:
    if first not in after:
        return False
    epoch = after[first][0]
    pair = [[ranks for n, (of, ranks) in steps.items() if n >= first and of == epoch] for steps in (before, after)]
    if _is_same(*([frozenset().union(*ranks) for ranks in steps] for steps in pair)) is not False:
        return False
    then, now = (itertools.chain.from_iterable(ranks[0] for ranks in steps) for steps in pair)
    return any(a != b for a, b in zip(then, now, strict=False))


def _ascends(steps: Sequence[set[int]]) -> bool | None:
    """Whether each step's samples are above those of the step before, or None if that may be chance."""
    if any(b and a and min(b) < max(a) for a, b in itertools.pairwise(steps)):
        return False
    ways = sum(math.lgamma(len(step) + 1) for step in steps) - math.lgamma(sum(map(len, steps)) + 1)
    return True if ways < _CHANCE else None


MOST_LOST = 0.6
"""Largest share of what was learned that a change may lose. Weights that start again lose 0.9 and more; of 200 healthy
changes none lost more than this (``benchmarks/elastic_plans.py``)."""

_STEPS = 5  # before and behind a load whose mean is taken: the loss of one batch says little

_LEARNED = 8.0
"""Standard deviations between one step's loss and the next's that a training must have learned before it is judged. A
loss after a load counts as worse than nothing learned if it is above all means before by so many standard deviations of
a mean, and by a quarter of the highest: fewer nodes make a smaller, noisier batch."""

_ABOVE = 0.25  # of that highest mean, see :data:`_LEARNED`


def worst_relapse(history: History) -> tuple[float, str]:
    """Largest share of what was learned that a load lost, and in words; 0 if nothing was, or too little was learned."""
    found = [(0.0, "")]
    kept = {(number, generation): mean_of("loss", lines) for number, generation, _, lines in history.passes()}
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
        means = (_mean(earlier[i : i + _STEPS]) for i in range(len(earlier) - _STEPS + 1))
        highest = max(mean for mean in means if mean is not None)
        # a step's standard deviation, seen in its differences from step to step: learning is none of it
        squares = [(b - a) ** 2 for a, b in itertools.pairwise(earlier) if a is not None and b is not None]
        noise = sqrt(fmean(squares) / 2)
        if after > highest + max(_LEARNED * noise / sqrt(_STEPS), _ABOVE * abs(highest)):
            message = (
                f"generation {generation} continued after the checkpoint of step {step} with a loss of {after:.4g}; "
                f"before, it was never above {highest:.4g} (means of {_STEPS} steps)"
            )
            found.append((1.0, message))
            continue
        if learned <= 0 or learned < _LEARNED * stdev([loss for loss in before if loss is not None]):
            continue
        share = max(0.0, (after - at_checkpoint) / learned)
        message = (
            f"the loss had fallen from {begin:.4g} to {at_checkpoint:.4g} at the checkpoint of step {step}, and "
            f"generation {generation} continued with {after:.4g} (means of {_STEPS} steps)"
        )
        found.append((share, message))
    return max(found, key=lambda relapse: relapse[0])


def accuracy_lost(history: History) -> float | None:
    """Largest fall of the accuracy at a load, between means of five steps before and after it.

    None if steps do not record it, or too few do.
    """
    accuracies = {number: mean_of("accuracy", lines) for number, *_, lines in history.passes()}
    found = []
    for generation in history.generations:
        step = history.resumed_at(generation)
        before = _mean([accuracies.get(number) for number in range(step - _STEPS + 1, step + 1)])
        after = _mean(_first_of(history, generation, "accuracy"))
        found += [before - after] if before is not None and after is not None else []
    return max(found, default=None)


def _first_of(history: History, generation: int, name: Literal["loss", "accuracy"]) -> list[float | None]:
    lines = (line for worker in history.members(generation).values() for line in worker.steps[:_STEPS])
    steps = grouped((line.step, line) for line in lines)
    return [mean_of(name, lines) for _, lines in sorted(steps.items())][:_STEPS]


def _mean(losses: Sequence[float | None]) -> float | None:
    known = [loss for loss in losses if loss is not None]
    return fmean(known) if len(known) == len(losses) == _STEPS else None
