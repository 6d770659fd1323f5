"""Goal: what a training loop may give, and what it is told otherwise, at once and by name."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy
import pytest
import torch
from support.ranks import make_rank

from pytest_distbench.errors import RecordingError
from pytest_distbench.worker.context import RankContext
from pytest_distbench.worker.goal import Goal


def train(goal: Goal, *, value: object = 0.9, loss: object = None, samples: object = 1) -> None:
    for _ in goal.steps(samples_per_step=samples):  # type: ignore[arg-type]
        goal.check(lambda: value, loss=loss)  # type: ignore[arg-type,return-value]


def make_goal(rank: RankContext | None = None) -> Goal:
    return (rank or make_rank()).goal("accuracy", target=0.5, every=1, max_steps=2, curve_steps=1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss": torch.ones(2)}, r"one element, found one of shape \[2\] and torch.float32: take its mean"),
        ({"loss": torch.tensor(1j)}, r"one of shape \[\] and torch.complex64"),
        ({"loss": "low"}, r"wanted loss to be a number or a tensor of one element, found 'low' \(str\)"),
        ({"loss": True}, r"found True \(bool\)"),
        ({"loss": math.nan}, "the loss is nan at step 1: it diverged"),
        ({"loss": torch.tensor(math.inf)}, "the loss is inf at step 1: it diverged"),
        ({"value": None}, r"goal\('accuracy'\).check\(...\): wanted evaluate\(\) to return a number, found None"),
        ({"value": math.nan}, "at step 1: the evaluation on rank 0=nan; wanted a finite number"),
        ({"samples": 0}, "samples_per_step"),
        ({"samples": "8"}, "samples_per_step"),
        ({"samples": math.nan}, "samples_per_step"),
    ],
)
def test_a_step_without_its_numbers_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(RecordingError, match=message):
        train(make_goal(), **given)


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda goal: goal.check(lambda: 1.0), r"wanted inside the loop over goal.steps\(...\), found outside of it"),
        (lambda goal: [train(goal), goal.check(lambda: 1.0)], "found outside of it"),
        (lambda goal: [train(goal), train(goal)], r"were taken before; make a new one with rank.goal\(...\)"),
        (lambda goal: [goal.check(0.9) for _ in goal.steps(samples_per_step=1)], "wanted evaluate to be a function"),
        (lambda goal: list(goal.steps(samples_per_step=1)), "the loop never called goal.check"),
    ],
)
def test_a_goal_used_otherwise_is_told(misuse: Callable[[Goal], object], message: str) -> None:
    with pytest.raises(RecordingError, match=message):
        misuse(make_goal())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"curve_steps": 0}, "curve_steps=0; wanted a whole number of at least 1"),
        ({"evaluation_samples": 0}, r"evaluation_samples=.*; wanted a whole number"),
        ({"better": "floor"}, "better='floor'; wanted one of higher, lower"),
        ({"min_steps": -1}, r"min_steps=.*; wanted a whole number"),
    ],
)
def test_numbers_that_make_no_training_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(RecordingError, match=message):
        make_rank().goal("accuracy", **{"target": 1, "every": 1, "max_steps": 2, **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize(("every", "met_at"), [(1, 3), (2, 2), (3, 1)])
def test_the_time_to_the_target_is_the_end_of_the_evaluation_that_met_it(
    monkeypatch: pytest.MonkeyPatch, every: int, met_at: int
) -> None:
    """Each step takes a second, by a clock that is made up."""
    rank = make_rank()
    now = [10.0]
    monkeypatch.setattr(rank, "own_clock", lambda: now[0])
    goal = rank.goal("accuracy", target=0.5, every=every, max_steps=6, curve_steps=1, min_steps=6)
    values = iter([0.0] * (met_at - 1) + [0.9] * 6)
    for _ in goal.steps(samples_per_step=1):
        now[0] += 1.0
        goal.check(lambda: next(values))
    found = {o.name: o.values for o in rank.notebook.observations}

    assert found["evaluation_ends"] == pytest.approx([float(step) for step in range(every, 7, every)], abs=0.1)
    assert found["time_to_accuracy"] == [found["evaluation_ends"][met_at - 1]]


@pytest.mark.parametrize(
    "loss",
    [2, 2.0, numpy.float32(2), torch.tensor(2.0), torch.tensor([2.0], requires_grad=True), torch.tensor([[2]])],
    ids=repr,
)
def test_a_loss_is_a_number_or_a_tensor_of_one_element(loss: object) -> None:
    rank = make_rank()
    train(make_goal(rank), loss=loss)

    assert [o.values for o in rank.notebook.observations if o.name == "loss"] == [[2.0, 2.0]]
