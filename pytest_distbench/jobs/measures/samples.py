"""Was every sample of every epoch trained on once, as was asked for? Counted over the passes that counted."""

from __future__ import annotations

from collections import Counter
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
