"""An epoch behind a load has an order of its own, where the training shuffles."""

from __future__ import annotations

import random
from collections.abc import Sequence

from pytest_distbench.jobs.measures.history import History
from pytest_distbench.jobs.measures.order import epochs_in_one_order
from pytest_distbench.records.timeline import Batch, Joined, Line, Loaded, Stepped

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
