"""Every sample of every epoch once, whatever happened in between."""

from __future__ import annotations

from support.timelines import Timeline, killed

from pytest_distbench.launch.elastic.samples import count_samples
from pytest_distbench.records.record import replace
from pytest_distbench.records.timeline import Batch


def test_a_step_that_was_redone_counts_once() -> None:
    found = count_samples(killed().history)

    assert (found.skipped, found.repeated, found.first) == (0, 0, "")


def test_a_training_that_goes_on_at_the_beginning_of_its_epoch_repeats_samples() -> None:
    timeline = Timeline()
    timeline.generation(0, [0, 1], first=1.0, steps=2)
    timeline.seen[2] = (0, 0)  # as if the place in the epoch had not been kept
    timeline.generation(1, [0, 1], first=9.0, steps=3, resumed=2)
    found = count_samples(timeline.history)

    assert (found.skipped, found.repeated) == (0, 8)
    assert found.first.startswith("epoch 0: sample 0 was trained on 2 times, the last time in step 3, and 7 others")


def test_a_share_that_nobody_was_given_is_skipped() -> None:
    timeline = Timeline()
    timeline.generation(0, [0, 1], first=1.0, steps=6)
    timeline.lines = [
        replace(line, samples=[]) if isinstance(line, Batch) and (line.slot, line.step) == (1, 5) else line
        for line in timeline.lines
    ]
    found = count_samples(timeline.history)

    assert (found.skipped, found.repeated) == (2, 0)
    assert found.first == "epoch 1: nobody trained on sample 5, nor on 1 others"
