"""Where a generation went on: too far back, at another epoch, with optimizers that forgot."""

from __future__ import annotations

import pytest
from support.timelines import JOB, Timeline, killed

from pytest_distbench.jobs.measures.history import History
from pytest_distbench.jobs.measures.resume import optimizers_that_forgot, tell_wrong_resume
from pytest_distbench.read import stdout
from pytest_distbench.records.record import replace
from pytest_distbench.records.timeline import Batch, Loaded, Remembered, Saved, Stepped

SCRIPT = replace(JOB, checkpoint_every=None, steps=stdout("step (.*)"))


def of_script(*generations: list[tuple[int, int | None]]) -> History:
    """One worker per generation, with step and epoch of each line."""
    timeline = Timeline()
    for number, steps in enumerate(generations):
        timeline.generation(number, [0], first=10.0 * number + 2, steps=1)
        timeline.lines = [
            x for x in timeline.lines if not isinstance(x, Loaded | Batch | Stepped) or x.generation < number
        ]
        timeline.lines += [
            Stepped(t=10.0 * number + 2 + i, slot=0, generation=number, step=step, world_size=1, epoch=epoch)
            for i, (step, epoch) in enumerate(steps)
        ]
    return timeline.history


def test_a_training_that_went_on_at_its_newest_checkpoint_is_as_it_should_be() -> None:
    assert tell_wrong_resume(killed().history, JOB) == ""


def test_a_body_that_went_on_behind_an_older_checkpoint_is_told_unless_the_newer_one_was_torn() -> None:
    timeline = killed()
    timeline.lines.append(Saved(t=20.2, slot=0, generation=0, step=9, seconds=0.0))
    told = tell_wrong_resume(timeline.history, JOB)
    torn = [replace(x, torn=["step9.pt"]) if isinstance(x, Loaded) and x.generation else x for x in timeline.lines]

    assert told.startswith(
        "Wrong epoch on resume: generation 1 went on behind step 6, and the newest checkpoint was of"
    )
    assert "Nobody but rank.training(...) may set" in told
    assert tell_wrong_resume(History(sorted(torn, key=lambda x: x.t)), JOB) == ""


def test_a_step_that_has_changed_its_epoch_is_told() -> None:
    lines = [replace(x, epoch=0) if isinstance(x, Batch) and x.generation else x for x in killed().history.lines]
    told = tell_wrong_resume(History(lines), JOB)

    assert told.startswith("Wrong epoch on resume: step 7 was of epoch 2, and after the change it is of epoch 0.")


def test_a_new_step_is_of_the_last_epoch_or_of_the_next() -> None:
    before = [(1, 0), (2, 0), (3, 1)]

    assert [bool(tell_wrong_resume(of_script(before, [(4, epoch)]), SCRIPT)) for epoch in (0, 1, 2, 3)] == [
        True, False, False, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("every", "again", "told"),
    [
        (None, 40, ""),
        (None, 1, "had come to step 50, and after the change it began at step 1 again, as at its very beginning"),
        (60, 1, ""),
        (20, 31, ""),
        (20, 21, "it went on at step 21: that is 30 steps back, and a checkpoint is due every 20"),
    ],
)
def test_a_script_goes_back_to_its_last_checkpoint_and_no_further(every: int | None, again: int, told: str) -> None:
    history = of_script([(step, None) for step in range(1, 51)], [(again, None), (again + 1, None)])
    found = tell_wrong_resume(history, replace(SCRIPT, checkpoint_every=every))

    assert told in found
    assert bool(found) is bool(told)


def test_an_epoch_that_goes_on_under_another_number_is_told_of_a_script_too() -> None:
    history = of_script([(1, 0), (2, 0), (3, 1), (4, 1)], [(3, 0), (4, 0)])

    assert "step 3 was of epoch 1, and after the change it is of epoch 0" in tell_wrong_resume(history, SCRIPT)


@pytest.mark.parametrize(
    ("before", "after", "found"), [(4, 4, 0), (0, 4, 1), (0, 0, 0), (2, 4, 1)], ids=["kept", "lost", "none", "partly"]
)
def test_optimizers_that_begin_with_less_than_they_knew_have_forgotten(before: int, after: int, found: int) -> None:
    timeline = killed()
    timeline.lines += [
        Remembered(t=11.0, slot=0, generation=0, before=0, after=after),
        Remembered(t=25.0, slot=0, generation=1, before=before, after=after),
    ]

    assert optimizers_that_forgot(timeline.history) == found


def test_a_generation_that_begins_the_training_again_has_nothing_to_remember() -> None:
    timeline = Timeline()
    for number in range(2):
        timeline.generation(number, [0], first=10.0 * number + 2, steps=2)
        timeline.lines.append(Remembered(t=10.0 * number + 2, slot=0, generation=number, before=0, after=4))

    assert optimizers_that_forgot(timeline.history) == 0
