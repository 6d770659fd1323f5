"""Every sample of every epoch once, whatever happened in between."""

from __future__ import annotations

import pytest
from support.timelines import Timeline, killed

from pytest_distbench.jobs.measures.samples import count_samples
from pytest_distbench.records.record import replace
from pytest_distbench.records.timeline import Batch, Drew, Wanted


def test_a_step_that_was_redone_counts_once() -> None:
    found = count_samples(killed().history)

    assert (found.skipped, found.repeated, found.first_skipped, found.first_repeated) == (0, 0, "", "")


def test_a_training_that_goes_on_at_the_beginning_of_its_epoch_repeats_samples() -> None:
    timeline = Timeline()
    timeline.generation(0, [0, 1], first=1.0, steps=2)
    timeline.seen[2] = (0, 0)  # as if the place in the epoch had not been kept
    timeline.generation(1, [0, 1], first=9.0, steps=3, resumed=2)
    found = count_samples(timeline.history)

    assert (found.skipped, found.repeated) == (0, 8)
    assert found.first_repeated.startswith("epoch 0: sample 0 was trained on 2 times, the last time in step 3, and 7")


def test_a_share_that_nobody_was_given_is_skipped() -> None:
    timeline = Timeline()
    timeline.generation(0, [0, 1], first=1.0, steps=6)
    timeline.lines.append(Wanted(t=0.0, slot=0, generation=0, samples=12, epochs=2))
    timeline.lines = [
        replace(line, samples=[]) if isinstance(line, Batch) and (line.slot, line.step) == (1, 5) else line
        for line in timeline.lines
    ]
    found = count_samples(timeline.history)

    assert (found.skipped, found.repeated) == (2, 0)
    assert found.first_skipped == "epoch 1: nobody trained on sample 5, nor on 1 others"


def test_epochs_that_were_asked_for_and_never_begun_are_skipped_and_who_ends_on_purpose_says_how_many() -> None:
    timeline = killed()
    timeline.lines.append(Wanted(t=9.0, slot=0, generation=0, samples=12, epochs=9))
    timeline.lines.append(Wanted(t=24.0, slot=0, generation=1, samples=12, epochs=1000))
    timeline.lines.append(Wanted(t=24.5, slot=0, generation=1, samples=12, epochs=5, is_end=True))
    found = count_samples(timeline.history)

    assert (found.skipped, found.repeated) == (2 * 12, 0)
    assert found.first_skipped == "2 of 5 epochs that training.batches was asked for were never begun"


@pytest.mark.parametrize(
    ("epochs", "epoch", "skipped", "told"),
    [
        (5, 0, 2, "training.batches was asked for 5 epochs before, and for 3 in generation 1: 2 of 5 epochs"),
        (5, 4, 0, ""),  # asks for one epoch after the other, and came to its goal sooner the second time
    ],
)
def test_a_wish_that_shrinks_from_one_generation_to_the_next_counts_as_it_was_before(
    epochs: int, epoch: int, skipped: int, told: str
) -> None:
    timeline = killed()
    timeline.lines.append(Wanted(t=9.0, slot=0, generation=0, samples=12, epochs=epochs, epoch=epoch))
    timeline.lines.append(Wanted(t=24.0, slot=0, generation=1, samples=12, epochs=3, epoch=2))
    found = count_samples(timeline.history)

    assert found.skipped == skipped * 12
    assert found.first_skipped.startswith(told)


def test_samples_that_a_later_generation_does_not_ask_for_are_skipped() -> None:
    timeline = killed()
    timeline.lines.append(Wanted(t=9.0, slot=0, generation=0, samples=14, epochs=3))
    timeline.lines.append(Wanted(t=24.0, slot=0, generation=1, samples=12, epochs=3))
    found = count_samples(timeline.history)

    assert found.skipped == 3 * 2
    assert found.first_skipped.startswith("training.batches was asked for 14 samples before, and for 12 in generation")


def test_samples_that_do_not_come_out_even_on_so_many_nodes_may_be_left_out() -> None:
    timeline = killed()
    timeline.lines.append(Wanted(t=9.0, slot=0, generation=0, samples=13, epochs=3))
    timeline.lines.append(Wanted(t=24.0, slot=0, generation=1, samples=12, epochs=3))

    assert count_samples(timeline.history).skipped == 0


def test_what_a_body_says_it_drew_counts_in_place_of_what_it_was_given() -> None:
    timeline = Timeline()
    timeline.lines.append(Wanted(t=0.0, slot=0, generation=0, samples=12, epochs=1))
    timeline.generation(0, [0, 1], first=1.0, steps=3)
    timeline.lines += [
        Drew(t=0.9, slot=slot, generation=0, step=1, samples=[0, 2]) for slot in (0, 1)
    ]  # both the batch of rank 0
    found = count_samples(timeline.history)

    assert (found.skipped, found.repeated) == (2, 2)
    assert found.first_repeated.startswith("epoch 0: sample 0 was trained on 2 times, the last time in step 1")
