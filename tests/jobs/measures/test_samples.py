"""Samples are counted over the passes that counted, and epochs compared by their order."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from support.timelines import Timeline, killed

from pytest_distbench.jobs.measures.history import History
from pytest_distbench.jobs.measures.samples import count_samples, epochs_in_one_order
from pytest_distbench.records.record import replace
from pytest_distbench.records.timeline import Batch, Drew, Joined, Line, Loaded, Stepped, Wanted


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


SAMPLES = 48


def shuffled(seed: int) -> list[int]:
    return random.Random(seed).sample(range(SAMPLES), SAMPLES)


def trained(
    orders: Sequence[Sequence[int]], *, resumed: int, nodes: tuple[int, int] = (2, 2), batch: int = 4
) -> History:
    """Epochs in given orders; from the epoch ``resumed`` on by another generation, each of so many nodes."""
    lines: list[Line] = []
    step = 0
    for epoch, order in enumerate(orders):
        generation = int(epoch >= resumed)
        slots = range(nodes[generation])
        for slot in slots if epoch in (0, resumed) else ():
            lines += [
                Joined(t=step, slot=slot, pid=slot, generation=generation, rank=slot, world_size=len(slots)),
                Loaded(t=step, slot=slot, generation=generation, began_t=step, step=step),
            ]
        for chosen in (order[i : i + batch * len(slots)] for i in range(0, SAMPLES, batch * len(slots))):
            step += 1
            for slot in slots:
                of = {"t": float(step), "slot": slot, "generation": generation, "step": step}
                lines += [
                    Batch(**of, epoch=epoch, samples=list(chosen[slot :: len(slots)])),
                    Stepped(**of, world_size=len(slots), samples=len(chosen)),
                ]
    return History(lines)


def test_an_epoch_behind_a_load_in_the_order_of_epoch_0_is_named_with_both() -> None:
    count, told = epochs_in_one_order(trained([shuffled(0), shuffled(1), shuffled(0), shuffled(3)], resumed=2))

    assert count == 1
    assert told.startswith(
        "epoch 2, which a generation went on with behind a load, has the samples in the order of epoch 0"
    )


def test_it_is_known_by_another_number_of_nodes_too() -> None:
    orders = [shuffled(0), shuffled(0), shuffled(2)]

    assert epochs_in_one_order(trained(orders, resumed=1, nodes=(2, 1)))[0] == 1
    assert epochs_in_one_order(trained(orders, resumed=1, nodes=(1, 2)))[0] == 1


def test_orders_of_their_own_are_none() -> None:
    assert epochs_in_one_order(trained([shuffled(0), shuffled(1), shuffled(2)], resumed=1)) == (0, "")


def test_of_a_training_that_does_not_shuffle_nothing_is_told() -> None:
    assert epochs_in_one_order(trained([range(SAMPLES)] * 4, resumed=2)) == (0, "")


def test_orders_that_may_be_equal_by_chance_say_nothing() -> None:
    orders = [shuffled(0), shuffled(0), shuffled(2)]

    assert epochs_in_one_order(trained(orders, resumed=1, batch=SAMPLES // 2)) == (0, "")  # one step per epoch


def test_an_epoch_that_no_load_lies_before_is_not_asked_about() -> None:
    assert epochs_in_one_order(trained([shuffled(0), shuffled(0), shuffled(2)], resumed=2)) == (0, "")
