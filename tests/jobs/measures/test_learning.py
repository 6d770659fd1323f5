"""What a load lost of what had been learned, from losses that can be seen."""

from __future__ import annotations

import pytest
from support.timelines import Timeline

from pytest_distbench.jobs.measures.learning import accuracy_lost, worst_relapse
from pytest_distbench.records.record import replace
from pytest_distbench.records.timeline import Stepped


def trained(*, after: float, noise: float = 0.0) -> Timeline:
    """Losses from 2.0 down to 1.0 at step 20; the generation behind that checkpoint begins with another one."""
    timeline = Timeline()
    timeline.generation(0, [0, 1], first=1.0, steps=24, saved=[20])
    timeline.generation(1, [0], first=50.0, steps=8, resumed=20)

    def loss(line: Stepped) -> float:
        swing = noise if line.step % 2 else -noise
        return after if line.generation else max(1.0, 2.0 - 0.1 * max(0, line.step - 5)) + swing

    timeline.lines = [replace(line, loss=loss(line)) if isinstance(line, Stepped) else line for line in timeline.lines]
    return timeline


@pytest.mark.parametrize(("after", "share"), [(1.0, 0.0), (0.8, 0.0), (1.3, 0.3), (2.0, 1.0)])
def test_a_load_lost_the_share_by_which_the_loss_rose_of_that_by_which_it_had_fallen(
    after: float, share: float
) -> None:
    assert worst_relapse(trained(after=after).history).share == pytest.approx(share)


def test_it_is_told_with_its_numbers() -> None:
    assert worst_relapse(trained(after=2.0).history).told == (
        "the loss had come down from 2 to 1 at the checkpoint of step 20, and generation 1 went on behind it with 2 "
        "(means of 5 steps)"
    )


def test_where_one_batch_differs_from_the_next_as_much_as_was_learned_nothing_is_said() -> None:
    assert worst_relapse(trained(after=2.0, noise=0.3).history).share == 0.0


@pytest.mark.parametrize(("after", "is_lost"), [(4.0, True), (2.1, False)])
def test_a_loss_far_above_that_of_the_beginning_is_lost_however_little_had_been_learned(
    after: float, is_lost: bool
) -> None:
    found = worst_relapse(trained(after=after, noise=0.3).history)

    assert (found.share >= 1.0) is is_lost
    assert ("and before it the loss had never been above 2.06 (means of 5 steps)" in found.told) is is_lost


def test_a_training_that_tells_no_loss_or_begins_anew_says_nothing() -> None:
    silent = trained(after=2.0)
    silent.lines = [replace(line, loss=None) if isinstance(line, Stepped) else line for line in silent.lines]
    timeline = Timeline()
    timeline.generation(0, [0], first=1.0, steps=8)
    timeline.generation(1, [0], first=50.0, steps=8, resumed=0)

    assert worst_relapse(silent.history).share == worst_relapse(timeline.history).share == 0.0


@pytest.mark.parametrize(("after", "lost"), [(0.5, 0.25), (0.75, 0.0), (None, None)])
def test_the_accuracy_that_a_load_lost_is_a_difference_of_means(after: float | None, lost: float | None) -> None:
    timeline = trained(after=1.0)
    timeline.lines = [
        replace(line, accuracy=after if line.generation else 0.75) if isinstance(line, Stepped) else line
        for line in timeline.lines
    ]

    assert accuracy_lost(timeline.history) == lost
