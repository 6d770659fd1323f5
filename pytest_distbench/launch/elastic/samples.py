"""Was every sample of every epoch trained on once, as was asked for? Counted over the passes that counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pytest_distbench.launch.elastic.history import History
from pytest_distbench.records.timeline import Wanted


@dataclass(frozen=True, slots=True)
class SampleCount:
    """What became of the samples.

    Attributes:
        skipped: samples of an epoch that nobody trained on, over all epochs.
        repeated: further trainings on a sample in the same epoch.
        first_skipped: the first of them, in words; empty: there is none.
        first_repeated: the same.
    """

    skipped: int
    repeated: int
    first_skipped: str = ""
    first_repeated: str = ""


def count_samples(history: History) -> SampleCount:
    """Compare what was trained on with what the last generation asked ``training.batches`` for, epoch by epoch."""
    last = max((line.generation for line in history.of(Wanted)), default=None)
    asked = {line.slot: line for line in history.of(Wanted) if line.generation == last}  # of each its last word
    num_epochs = max((line.epochs for line in asked.values()), default=0)
    known = set(range(max((line.samples for line in asked.values()), default=0)))
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
    return SampleCount(skipped, repeated, first_skipped, first_repeated)
