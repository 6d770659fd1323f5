"""Did each generation go on where it should have: its step, its samples, and what it had learned?"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from support.timelines import JOB, Timeline, but, killed

from pytest_distbench.elastic.measures import continuity
from pytest_distbench.elastic.measures.continuity import epochs_in_one_order, explain_wrong_resume, samples_reordered
from pytest_distbench.elastic.measures.history import History
from pytest_distbench.elastic.records import event
from pytest_distbench.read import stdout
from pytest_distbench.records.record import replace
from pytest_distbench.records.wire import Event

SCRIPT = replace(JOB, checkpoint_every=None, steps=stdout("step (.*)"))


def of_script(*generations: list[tuple[int, int | None]]) -> History:
    """One worker per generation, with step and epoch of each line."""
    timeline = Timeline()
    for number, steps in enumerate(generations):
        timeline.generation(number, [0], first=10.0 * number + 2, steps=1)
        timeline.lines = [
            x for x in timeline.lines if x.what not in ("loaded", "batch", "stepped") or x.generation < number
        ]
        timeline.lines += [
            event("stepped", t=10.0 * number + 2 + i, slot=0, generation=number, step=step, world_size=1, epoch=epoch)
            for i, (step, epoch) in enumerate(steps)
        ]
    return timeline.history


def test_a_step_changes_its_epoch_only_as_the_training_goes_on() -> None:
    assert explain_wrong_resume(killed().history, JOB) == ""

    lines = [but(x, epoch=0) if x.what == "batch" and x.generation else x for x in killed().history.lines]
    told = explain_wrong_resume(History(lines), JOB)
    assert told.startswith("Wrong epoch on resume: step 7 was of epoch 2, and after the change it is of epoch 0.")

    before = [(1, 0), (2, 0), (3, 1)]
    assert [bool(explain_wrong_resume(of_script(before, [(4, epoch)]), SCRIPT)) for epoch in (0, 1, 2, 3)] == [
        True, False, False, True,
    ]  # fmt: skip

    history = of_script([(1, 0), (2, 0), (3, 1), (4, 1)], [(3, 0), (4, 0)])
    assert "step 3 was of epoch 1, and after the change it is of epoch 0" in explain_wrong_resume(history, SCRIPT)


def test_continuing_from_an_older_checkpoint_is_reported_unless_the_newer_is_damaged() -> None:
    timeline = killed()
    timeline.lines.append(event("saved", t=20.2, slot=0, generation=0, step=9, seconds=0.0))
    told = explain_wrong_resume(timeline.history, JOB)
    torn = [but(x, torn=["step9.pt"]) if x.what == "loaded" and x.generation else x for x in timeline.lines]

    assert told.startswith(
        "Wrong epoch on resume: generation 1 continued after step 6, and the newest checkpoint was of"
    )
    assert "Only rank.training(...) may set" in told
    assert explain_wrong_resume(History(sorted(torn, key=lambda x: x.t)), JOB) == ""


@pytest.mark.parametrize(
    ("every", "again", "text"),
    [
        (None, 40, ""),
        (None, 1, "had reached step 50, and after the change it started from step 1 again"),
        (60, 1, ""),
        (20, 31, ""),
        (20, 21, "it continued at step 21: that is 30 steps back, and a checkpoint is due every 20"),
    ],
)
def test_a_script_goes_back_to_its_last_checkpoint_and_no_further(every: int | None, again: int, text: str) -> None:
    history = of_script([(step, None) for step in range(1, 51)], [(again, None), (again + 1, None)])
    found = explain_wrong_resume(history, replace(SCRIPT, checkpoint_every=every))

    assert text in found
    assert bool(found) is bool(text)


@pytest.mark.parametrize(
    ("before", "after", "found"), [(4, 4, 0), (0, 4, 1), (0, 0, 0), (2, 4, 1)], ids=["kept", "lost", "none", "partly"]
)
def test_optimizers_that_begin_with_less_than_they_knew_have_forgotten(before: int, after: int, found: int) -> None:
    timeline = killed()
    timeline.lines += [
        event("remembered", t=11.0, slot=0, generation=0, before=0, after=after),
        event("remembered", t=25.0, slot=0, generation=1, before=before, after=after),
    ]

    assert continuity.optimizers_that_forgot(timeline.history) == found


def wish(generation: int, *, samples: int = 12, epochs: int = 3, **more: object) -> Event:
    of = {"t": 24.0 if generation else 9.0, "slot": 0, "generation": generation}
    return event("wanted", **{**of, "samples": samples, "epochs": epochs, **more})


ASKED = "training.batches was asked for"


@pytest.mark.parametrize(
    ("wishes", "skipped", "text"),
    [
        ([], 0, ""),
        ([wish(0, samples=14), wish(1)], 3 * 2, f"{ASKED} 14 samples before, and for 12 in generation"),
        ([wish(0, samples=13), wish(1)], 0, ""),
        (
            [wish(0, epochs=9), wish(1, epochs=1000), wish(1, epochs=5, t=24.5, is_end=True)],
            2 * 12,
            f"2 of 5 epochs that {ASKED} never started",
        ),
        (
            [wish(0, epochs=5, epoch=0), wish(1, epoch=2)],
            2 * 12,
            f"{ASKED} 5 epochs before, and for 3 in generation 1: 2 of 5 epochs",
        ),
        ([wish(0, epochs=5, epoch=4), wish(1, epoch=2)], 0, ""),  # one epoch after the other; came to its goal sooner
    ],
    ids=["none", "fewer samples", "the remainder", "never begun but for an end on purpose", "shrinks", "sooner"],
)
def test_samples_and_epochs_that_no_generation_asked_for_are_skipped(
    wishes: list[Event], skipped: int, text: str
) -> None:
    timeline = killed()
    timeline.lines += wishes
    found = continuity.count_samples(timeline.history)

    assert (found[0][0], found[1]) == (skipped, (0, ""))
    assert found[0][1].startswith(text) if text else found[0][1] == ""


def test_what_a_body_says_it_drew_counts_in_place_of_what_it_was_given() -> None:
    timeline = Timeline()
    timeline.lines.append(event("wanted", t=0.0, slot=0, generation=0, samples=12, epochs=1))
    timeline.generation(0, [0, 1], first=1.0, steps=3)
    timeline.lines += [
        event("drew", t=0.9, slot=slot, generation=0, step=1, samples=[0, 2]) for slot in (0, 1)
    ]  # both the batch of rank 0
    found = continuity.count_samples(timeline.history)

    assert (found[0][0], found[1][0]) == (2, 2)
    assert found[1][1].startswith("epoch 0: sample 0 was trained on 2 times, the last time in step 1")


SAMPLES = 48


def shuffled(seed: int) -> list[int]:
    return random.Random(seed).sample(range(SAMPLES), SAMPLES)


def trained(
    orders: Sequence[Sequence[int]], *, resumed: int, nodes: tuple[int, int] = (2, 2), batch: int = 4
) -> History:
    """Epochs in given orders; from the epoch ``resumed`` on by another generation, each of so many nodes."""
    lines: list[Event] = []
    step = 0
    for epoch, order in enumerate(orders):
        generation = int(epoch >= resumed)
        slots = range(nodes[generation])
        for slot in slots if epoch in (0, resumed) else ():
            lines += [
                event("joined", t=step, slot=slot, pid=slot, generation=generation, rank=slot, world_size=len(slots)),
                event("loaded", t=step, slot=slot, generation=generation, began_t=step, step=step),
            ]
        for chosen in (order[i : i + batch * len(slots)] for i in range(0, SAMPLES, batch * len(slots))):
            step += 1
            for slot in slots:
                of = {"t": float(step), "slot": slot, "generation": generation, "step": step}
                lines += [
                    event("batch", **of, epoch=epoch, samples=list(chosen[slot :: len(slots)])),
                    event("stepped", **of, world_size=len(slots), samples=len(chosen)),
                ]
    return History(lines)


def test_orders_that_are_equal_behind_a_load_are_named() -> None:
    count, told = epochs_in_one_order(trained([shuffled(0), shuffled(1), shuffled(0), shuffled(3)], resumed=2))
    assert count == 1
    assert told.startswith("epoch 2, continued after a load, has the samples in the order of epoch 0")

    orders = [shuffled(0), shuffled(0), shuffled(2)]
    assert epochs_in_one_order(trained(orders, resumed=1, nodes=(2, 1)))[0] == 1
    assert epochs_in_one_order(trained(orders, resumed=1, nodes=(1, 2)))[0] == 1

    assert epochs_in_one_order(trained([shuffled(0), shuffled(1), shuffled(2)], resumed=1)) == (0, "")

    assert epochs_in_one_order(trained([range(SAMPLES)] * 4, resumed=2)) == (0, "")

    orders = [shuffled(0), shuffled(0), shuffled(2)]
    assert epochs_in_one_order(trained(orders, resumed=1, batch=SAMPLES // 2)) == (0, "")  # one step per epoch

    assert epochs_in_one_order(trained([shuffled(0), shuffled(0), shuffled(2)], resumed=2)) == (0, "")


def redone(
    before: Sequence[int], after: Sequence[int], *, nodes: tuple[int, int] = (2, 2), sharded: bool = False
) -> int:
    """Changes behind which ``after``, samples of an epoch that are trained on again, come in another order."""
    lines: list[Event] = []
    for generation, samples in enumerate((before, after)):
        n = nodes[generation]
        shares = [samples[i::n] for i in range(n)]
        if sharded:
            shares = [samples[i * len(samples) // n : (i + 1) * len(samples) // n] for i in range(n)]
        for slot, share in enumerate(shares):
            of = {"t": generation, "slot": slot, "generation": generation}
            lines.append(event("joined", **of, pid=slot, rank=slot, world_size=n))
            lines.append(event("loaded", **of, began_t=0, step=4))
            for i in range(0, len(share), 4):
                step = {**of, "step": 5 + i // 4}
                lines.append(event("batch", **step, epoch=0, samples=list(share[i : i + 4])))
                lines.append(event("stepped", **step, world_size=n, samples=4 * n))
    return samples_reordered(History(lines))[0]


def test_samples_that_are_trained_on_again_come_in_the_same_order() -> None:
    rest = shuffled(0)
    for nodes in ((2, 2), (2, 1), (1, 2), (3, 2)):
        assert redone(rest[:24], rest, nodes=nodes) == 0
        assert redone(rest[:24], rest[::-1], nodes=nodes) == 1
        assert redone(rest[:24], sorted(rest), nodes=nodes) == 1
        assert redone(rest[:24], shuffled(1), nodes=nodes) == 1
        assert redone(rest, rest, nodes=nodes, sharded=True) == 0  # each node has a part of the epoch of its own
        assert redone(sorted(rest), sorted(rest), nodes=nodes, sharded=True) == 0
    assert redone([], shuffled(1)) == 0


def test_samples_do_not_ascend_after_a_change_where_they_were_shuffled() -> None:
    orders = [shuffled(0), shuffled(1), range(SAMPLES), range(SAMPLES)]
    count, told = samples_reordered(trained(orders, resumed=2))

    assert count == 1
    assert (
        told == "generation 1, which continues after step 12: its samples ascend, and were shuffled before the change"
    )
    assert samples_reordered(trained(orders, resumed=3))[0] == 0  # a shuffled training that ends in order by itself
    assert samples_reordered(trained([range(SAMPLES)] * 4, resumed=2, nodes=(2, 1)))[0] == 0
    assert samples_reordered(trained([range(SAMPLES), *map(shuffled, range(3))], resumed=2))[0] == 0
    assert samples_reordered(trained(orders, resumed=2, batch=SAMPLES // 2))[0] == 0  # one step per epoch


def trained_of_learning(*, after: float, noise: float = 0.0) -> Timeline:
    """Losses from 2.0 down to 1.0 at step 20; the generation behind that checkpoint begins with another one."""
    timeline = Timeline()
    timeline.generation(0, [0, 1], first=1.0, steps=24, saved=[20])
    timeline.generation(1, [0], first=50.0, steps=8, resumed=20)

    def loss(line: Event) -> float:
        swing = noise if line.step % 2 else -noise
        return after if line.generation else max(1.0, 2.0 - 0.1 * max(0, line.step - 5)) + swing

    timeline.lines = [but(line, loss=loss(line)) if line.what == "stepped" else line for line in timeline.lines]
    return timeline


@pytest.mark.parametrize(("after", "share"), [(1.0, 0.0), (0.8, 0.0), (1.3, 0.3), (2.0, 1.0)])
def test_a_load_lost_the_share_by_which_the_loss_rose_of_that_by_which_it_had_fallen(
    after: float, share: float
) -> None:
    assert continuity.worst_relapse(trained_of_learning(after=after).history)[0] == pytest.approx(share)


def test_the_loss_of_learning_at_a_load_is_reported_with_its_numbers() -> None:
    assert continuity.worst_relapse(trained_of_learning(after=2.0).history)[1] == (
        "the loss had fallen from 2 to 1 at the checkpoint of step 20, and generation 1 continued with 2 "
        "(means of 5 steps)"
    )

    assert continuity.worst_relapse(trained_of_learning(after=2.0, noise=0.3).history)[0] == 0.0

    silent = trained_of_learning(after=2.0)
    silent.lines = [but(line, loss=None) if line.what == "stepped" else line for line in silent.lines]
    timeline = Timeline()
    timeline.generation(0, [0], first=1.0, steps=8)
    timeline.generation(1, [0], first=50.0, steps=8, resumed=0)
    assert continuity.worst_relapse(silent.history)[0] == continuity.worst_relapse(timeline.history)[0] == 0.0


@pytest.mark.parametrize(("after", "is_lost"), [(4.0, True), (2.1, False)])
def test_a_loss_far_above_that_of_the_beginning_is_lost_however_little_had_been_learned(
    after: float, is_lost: bool
) -> None:
    found = continuity.worst_relapse(trained_of_learning(after=after, noise=0.3).history)

    assert (found[0] >= 1.0) is is_lost
    assert ("before, it was never above 2.06 (means of 5 steps)" in found[1]) is is_lost


def test_a_generation_that_begins_the_training_again_has_nothing_to_remember() -> None:
    timeline = Timeline()
    for number in range(2):
        timeline.generation(number, [0], first=10.0 * number + 2, steps=2)
        timeline.lines.append(event("remembered", t=10.0 * number + 2, slot=0, generation=number, before=0, after=4))

    assert continuity.optimizers_that_forgot(timeline.history) == 0


def test_a_training_that_goes_on_at_the_beginning_of_its_epoch_repeats_samples() -> None:
    timeline = Timeline()
    timeline.generation(0, [0, 1], first=1.0, steps=2)
    timeline.seen[2] = (0, 0)  # as if the place in the epoch had not been kept
    timeline.generation(1, [0, 1], first=9.0, steps=3, resumed=2)
    found = continuity.count_samples(timeline.history)

    assert (found[0][0], found[1][0]) == (0, 8)
    assert found[1][1].startswith("epoch 0: sample 0 was trained on 2 times, the last time in step 3, and 7")


def test_a_share_that_nobody_was_given_is_skipped() -> None:
    timeline = Timeline()
    timeline.generation(0, [0, 1], first=1.0, steps=6)
    timeline.lines.append(event("wanted", t=0.0, slot=0, generation=0, samples=12, epochs=2))
    timeline.lines = [
        but(line, samples=[]) if line.what == "batch" and (line.slot, line.step) == (1, 5) else line
        for line in timeline.lines
    ]
    found = continuity.count_samples(timeline.history)

    assert (found[0][0], found[1][0]) == (2, 0)
    assert found[0][1] == "epoch 1: nobody trained on sample 5, nor on 1 others"


@pytest.mark.parametrize(("after", "lost"), [(0.5, 0.25), (0.75, 0.0), (None, None)])
def test_the_accuracy_that_a_load_lost_is_a_difference_of_means(after: float | None, lost: float | None) -> None:
    timeline = trained_of_learning(after=1.0)
    timeline.lines = [
        but(line, accuracy=after if line.generation else 0.75) if line.what == "stepped" else line
        for line in timeline.lines
    ]

    assert continuity.accuracy_lost(timeline.history) == lost
