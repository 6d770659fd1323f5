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
        first: the first that is wrong, in words; empty: none is.
    """

    skipped: int
    repeated: int
    first: str = ""


def count_samples(history: History) -> SampleCount:
    """Compare what was trained on with what the last generation asked ``training.batches`` for, epoch by epoch."""
    last = max((line.generation for line in history.of(Wanted)), default=None)
    wanted = [line for line in history.of(Wanted) if line.generation == last]
    num_epochs = max((line.epochs for line in wanted), default=0)
    known = set(range(max((line.samples for line in wanted), default=0)))
    epochs: dict[int, Counter[int]] = {epoch: Counter() for epoch in range(num_epochs)}
    where: dict[tuple[int, int], int] = {}
    for step, generation in history.kept().items():
        for worker in history.members(generation).values():
            batch = worker.batches.get(step)
            if batch is None:
                continue
            for sample in worker.samples(step):
                epochs.setdefault(batch.epoch, Counter())[sample] += 1
                where[batch.epoch, sample] = step
    skipped = repeated = 0
    first = ""
    for epoch, counts in sorted(epochs.items()):
        missing = sorted(known - counts.keys())
        again = sorted(sample for sample, count in counts.items() if count > 1)
        skipped += len(missing)
        repeated += sum(counts[sample] - 1 for sample in again)
        if not first and missing:
            first = f"epoch {epoch}: nobody trained on sample {missing[0]}, nor on {len(missing) - 1} others"
            if not counts:
                first = f"epoch {epoch} of {num_epochs} was never begun: nobody trained on any of {len(known)} samples"
        if not first and again:
            first = (
                f"epoch {epoch}: sample {again[0]} was trained on {counts[again[0]]} times, the last time in step "
                f"{where[epoch, again[0]]}, and {len(again) - 1} others were repeated too"
            )
    return SampleCount(skipped, repeated, first)
