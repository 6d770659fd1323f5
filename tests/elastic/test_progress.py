"""How far an elastic job has come, by the lines of its timeline and by what its script prints."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from support.timelines import ERROR, JOB, LOST, Timeline

from pytest_distbench.elastic.engines import CannotGoOn
from pytest_distbench.elastic.progress import ATTEMPTS, Progress, StepLines, check_pattern
from pytest_distbench.elastic.records import event
from pytest_distbench.errors import ConfigurationError, ReadingError
from pytest_distbench.read import csv, stdout
from pytest_distbench.records.launch import ErrorReport
from pytest_distbench.records.metric import Reader
from pytest_distbench.records.wire import Event


def progress(lines: list[Event], *taken: int) -> Progress:
    made = Progress(JOB.most)
    made.taken = set(taken)
    for line in sorted(lines, key=lambda line: line.t):
        made.heed(line)
    return made


@pytest.fixture
def two() -> Timeline:
    """Slots 0 and 1, four steps."""
    timeline = Timeline()
    timeline.generation(0, [0, 1], first=10.0, steps=4)
    return timeline


def raised(t: float, error: ErrorReport, *, generation: int | None = None) -> Event:
    return event("raised", t=t, slot=1, pid=500 + int(t - 20), generation=generation, error=error)


def test_it_is_stable_when_all_that_should_be_there_have_stepped(two: Timeline) -> None:
    assert progress(two.lines, 0, 1).stable_generation == 0
    assert progress(two.lines, 0).stable_generation is None
    assert progress([line for line in two.lines if line.t < 11.5], 0, 1).stable_generation is None


def test_it_is_over_when_all_of_a_generation_have_finished(two: Timeline) -> None:
    ends: list[Event] = [event("finished", t=14.0, slot=slot, generation=0) for slot in (0, 1)]
    one, both = progress(two.lines + ends[:1], 0, 1), progress(two.lines + ends, 0, 1)

    assert (one.is_ending, one.has_finished) == (True, False)
    assert both.has_finished


def started(count: int, slot: int = 1) -> list[Event]:
    return [event("started", t=20.0 + i, slot=slot, pid=500 + i, process_t=19.0 + i, restarts=i) for i in range(count)]


TOO_MANY = started(ATTEMPTS + 1)
GONE = [event("worker_ended", t=15.0 + slot, slot=slot, pid=slot) for slot in (0, 1)]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ([raised(14.0, LOST, generation=0)], ""),
        ([raised(14.0, ERROR, generation=0)], "the body raised in slot 1, generation 0: ValueError: no"),
        (started(ATTEMPTS), ""),
        (TOO_MANY, r"does not get beyond step 4: the worker of slot 1 was started 6 times since\."),
        ([raised(20.5, ERROR), raised(21.5, LOST), *TOO_MANY], "Before they had a group they raised ValueError: no"),
        ([*GONE, *TOO_MANY], "slot 1 was started 6 times since; the last time the worker of slot 0 ended f"),
    ],
)
def test_it_is_given_up_where_a_body_raised_or_a_worker_is_started_again_and_again(
    two: Timeline, more: list[Event], told: str
) -> None:
    with pytest.raises(CannotGoOn, match=told) if told else nullcontext():
        progress([*two.lines, *more], 0, 1)


EPOCHS = r"epoch (?P<epoch>\d+) step (?P<value>\d+)"


def numbers(lines: StepLines, *texts: str) -> list[int]:
    return [int(step["step"] or 0) for text in texts if (step := lines.take(text))]


def test_a_step_is_a_line_that_matches_and_what_its_groups_say() -> None:
    lines = StepLines(r"epoch (?P<epoch>\d+) step (?P<value>\d+) loss (?P<loss>\S+)( lr (?P<lr>\S+))?")
    step = lines.take("[0] epoch 3 step 7 loss 0.5 lr 1e-3")

    assert step is not None
    assert step == {"step": 7, "is_laid": False, "epoch": 3, "loss": 0.5, "accuracy": None, "top5": None, "lr": 0.001}
    assert lines.take("saved a snapshot") == {}
    with pytest.raises(ReadingError, match="the loss is nan: the training has diverged, at 'epoch 3 step 8 loss nan'"):
        lines.take("epoch 3 step 8 loss nan")


def test_epochs_are_laid_end_to_end_unless_a_script_goes_back_or_counts_on() -> None:
    first = StepLines(EPOCHS)
    assert numbers(first, *[f"epoch {e} step {s}" for e in range(2) for s in range(3)]) == [0, 1, 2, 3, 4, 5]
    again = StepLines(EPOCHS, first)
    assert numbers(again, "epoch 1 step 0", "epoch 1 step 1", "epoch 1 step 2", "epoch 1 step 3", "epoch 2 step 0") == [
        3, 4, 5, 6, 7,
    ]  # fmt: skip

    lines = StepLines(EPOCHS)
    texts = [f"epoch {e} step {s}" for e in range(3) for s in (0, 10)]
    on = StepLines(EPOCHS)
    counted_on = [f"epoch {e} step {20 * e + s}" for e in range(3) for s in (0, 10)]
    assert [step["is_laid"] for text in texts if (step := lines.take(text))] == [False, False, True, False, True, False]
    assert not any(step["is_laid"] for text in counted_on if (step := on.take(text)))

    first = StepLines(EPOCHS)
    numbers(first, "epoch 0 step 0", "epoch 0 step 1")
    assert numbers(StepLines(EPOCHS, first), "epoch 1 step 0", "epoch 1 step 1") == [2, 3]

    first = StepLines(EPOCHS)
    found = numbers(first, "epoch 0 step 10", "epoch 0 step 20", "epoch 1 step 30", "epoch 2 step 40")
    assert found == [10, 20, 30, 40]
    assert numbers(StepLines(EPOCHS, first), "epoch 1 step 30", "epoch 2 step 40", "epoch 3 step 50") == [30, 40, 50]


@pytest.mark.parametrize(
    ("pattern", "texts", "told"),
    [
        (r"step (\S+)", ["step 9", "step 0"], r"fell from 9 to 0 in one process, at 'step 0'. .*\(\?P<epoch>"),
        (r"step (\S+)", ["step 1.5"], "'1.5' is no whole number, of the line 'step 1.5'"),
        (
            r"step (?P<value>\d+) loss (?P<loss>\S+)",
            ["step 1 loss 0.5, 3 ms"],
            r"'0.5,' is no number, of the line 'step 1 loss 0.5, 3 ms': let the group loss",
        ),
    ],
)
def test_numbers_that_cannot_be_used_are_told_with_their_line(pattern: str, texts: list[str], told: str) -> None:
    with pytest.raises(ReadingError, match=told):
        numbers(StepLines(pattern), *texts)


@pytest.mark.parametrize(
    ("reader", "told"),
    [
        (csv("log.csv", "step"), "a reader of csv; wanted lines"),
        (stdout(r"step (\d+)", rank="all"), "rank='all': the workers of a generation step together"),
        (stdout(r"step (\d+)", skip=3, take="last"), "skip, take: every line counts"),
        (stdout(r"(?P<value>\d+) (?P<speed>\d+)"), "group speed; known are value .*, epoch, loss, accuracy, top5, lr"),
    ],
)
def test_a_reader_that_finds_no_steps_is_refused(reader: Reader, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        check_pattern(reader)


def test_a_line_that_is_printed_twice_is_one_step() -> None:
    assert numbers(StepLines(r"step (\d+)"), "step 1", "step 1", "step 2") == [1, 2]


def test_steps_before_a_change_do_not_show_that_it_is_stable(two: Timeline) -> None:
    made = progress([])
    made.taken = {0, 1}
    made.forget_steps(11.5)
    for line in two.lines:
        made.heed(line)

    assert (made.stable_generation, made.step) == (None, 4)


def test_a_change_or_a_step_further_lets_it_try_anew(two: Timeline) -> None:
    made = progress([*two.lines, *started(ATTEMPTS)], 0, 1)
    made.forget_steps(30.0)
    for line in started(ATTEMPTS):
        made.heed(line)
