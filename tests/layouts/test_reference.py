"""Every step of a pass compared with the same step in float64, which shows the step, and the part, that is off."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from support.ranks import make_rank
from torch import nn

from pytest_distbench.errors import BodyError
from pytest_distbench.layouts.deviations import GRADIENT, LOSS, STATE, WEIGHTS, Quantity
from pytest_distbench.layouts.layouts import one
from pytest_distbench.layouts.reference import NOT_FINITE, StepReference
from pytest_distbench.layouts.training import Pass, TrainSpec, Updates

ROUNDINGS = torch.finfo(torch.float32).eps * 16
"""Rounding error of a few sums of a few numbers in float32."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3, bias=False)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("scale", torch.full((8,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.second(self.drop(torch.tanh(self.first(x)) * self.scale))
        return found


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(step)
    return torch.randn(6, 4, generator=drawn), torch.randint(3, (6,), generator=drawn)


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.1)


def halved(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)


TRAINING = TrainSpec(
    model=Net, batch=batch, loss=nn.functional.cross_entropy, optimizer=adam, schedule=halved, max_norm=0.1
)


def compared(train: Callable[[Pass], object] = one, training: TrainSpec = TRAINING, **options: Any) -> StepReference:
    """A pass of three steps, with its deviations."""
    rank = make_rank()
    reference = StepReference(training, Pass(rank, training, lambda: (), precision="float64").model())
    train(Pass(rank, training, lambda: range(1, 4), oracle=reference, is_alone=True, **options))
    return reference


def off(reference: StepReference) -> set[tuple[int, int]]:
    """Steps and parts that are further off than roundings."""
    return {(q.step, q.part) for q, seen in reference.seen.items() if seen.deviation > ROUNDINGS}


def loop(
    spoil_gradients: Callable[[nn.Module, int], object] = lambda model, number: None,
    spoil_weights: Callable[[nn.Module, int], object] = lambda model, number: None,
    after: Callable[[nn.Module, int], object] = lambda model, number: None,
) -> Callable[[Pass], None]:
    """A training loop that does something wrong."""

    def train(run: Pass) -> None:
        model = run.model()
        updates = run.updates(model)
        for step in run.steps():
            [part] = step.share(0, 1)
            loss = step.loss(model, part)
            loss.backward()
            spoil_gradients(model, step.number)
            step.has_gradients(model, loss)
            updates.update()
            spoil_weights(model, step.number)
            step.is_over(model)
            after(model, step.number)

    return train


def change(model: nn.Module) -> None:
    with torch.no_grad():
        model.first.bias += 0.01


@pytest.mark.parametrize("order", [None, 1, 2])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_sound_pass_is_off_by_roundings_alone(precision: str, order: int | None) -> None:
    found = compared(precision=precision, order=order)

    assert off(found) == set()
    parts = {(step, part) for step in (1, 2, 3) for part in (WEIGHTS, LOSS, GRADIENT, STATE)}
    assert {(q.step, q.part) for q in found.seen} == parts
    assert Quantity(1, STATE, "scale") in found.seen
    assert len(found.losses) == len(found.expected_losses) == 3
    assert (found.has_gradient, found.has_changed) == (True, True)


def test_lower_precision_is_seen() -> None:
    assert (1, GRADIENT) in off(compared(precision="bfloat16"))


def without_a_schedule(run: Pass) -> None:
    model = run.model()
    optimizer = adam(model.parameters())
    for step in run.steps():
        [part] = step.share(0, 1)
        loss = step.loss(model, part)
        loss.backward()
        step.has_gradients(model, loss)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        step.is_over(model)


@pytest.mark.parametrize(
    ("train", "beyond"),
    [
        (loop(spoil_weights=lambda model, number: number == 2 and change(model)), {(2, STATE)}),  # another update
        (loop(after=lambda model, number: number == 1 and change(model)), {(2, WEIGHTS)}),  # before the next step
        (lambda run: run.train(run.model(seed=7)), {(1, WEIGHTS)}),  # other weights at the beginning
        (without_a_schedule, {(2, STATE), (3, STATE)}),  # clipping is part of the update, and its rate is not halved
    ],
)
def test_what_is_spoilt_is_seen_in_its_step_and_its_part_alone(
    train: Callable[[Pass], object], beyond: set[tuple[int, int]]
) -> None:
    assert off(compared(train)) == beyond


AVERAGED = dataclasses.replace(TRAINING, average=lambda average, weight: average.lerp(weight, 0.1))


def averaging(spoil: Callable[[Updates, int], object]) -> Callable[[Pass], None]:
    """A training loop that does something to the averages of its weights."""

    def train(run: Pass) -> None:
        model = run.model()
        updates = run.updates(model)
        for step in run.steps():
            loss = step.loss(model, step.batch)
            loss.backward()
            step.has_gradients(model, loss)
            updates.update()
            spoil(updates, step.number)
            step.is_over(model, updates.averages)

    return train


def double_averages(updates: Updates, number: int) -> None:
    if number == 2:
        updates.averages = {name: 2 * average for name, average in updates.averages.items()}


def test_averages_of_weights_are_compared() -> None:
    assert off(compared(averaging(lambda updates, number: None), AVERAGED)) == set()
    found = compared(averaging(double_averages), AVERAGED)

    assert off(found) == {(2, STATE)}  # the next one is right for this one
    beyond = {q.name for q, seen in found.seen.items() if seen.deviation > ROUNDINGS}
    assert beyond == {f"the average of {name}" for name in ("first.weight", "first.bias", "second.weight")}


def test_averages_that_are_not_given_are_refused() -> None:
    with pytest.raises(BodyError, match=r"wanted step\.is_over\(model, updates\.averages\)"):
        compared(loop(), AVERAGED)


def test_a_scaled_gradient_is_seen_with_its_factor_and_nothing_else_is_off() -> None:
    def double(model: nn.Module, number: int) -> None:
        if number == 2:
            model.second.weight.grad *= 2

    found = compared(loop(double))

    assert off(found) == {(2, GRADIENT)}
    seen = found.seen[Quantity(2, GRADIENT, "second.weight")]
    assert (seen.deviation, seen.factor) == pytest.approx((1.0, 2.0), rel=1e-4)
    assert seen.rest < ROUNDINGS


def test_a_gradient_that_is_not_there_is_infinitely_off() -> None:
    def forget(model: nn.Module, number: int) -> None:
        model.first.weight.grad = None

    assert compared(loop(forget)).seen[Quantity(1, GRADIENT, "first.weight")].deviation == torch.inf


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_gradient_that_is_not_finite_is_infinitely_off(value: float) -> None:
    def spoil(model: nn.Module, number: int) -> None:
        model.first.weight.grad[0, 0] = value

    assert compared(loop(spoil)).seen[Quantity(1, GRADIENT, "first.weight")] == NOT_FINITE


def cut(model: nn.Module, number: int) -> None:
    model.first.weight = nn.Parameter(model.first.weight[:4])


OTHER_NAME = r"the layout has 0\.first\.weight, .* It has first.bias, first.weight"
TOO_SMALL = "wanted a batch of at least 8 samples, 2 for each of 4 ranks; found 6: give it more, or run on fewer ranks"


@pytest.mark.parametrize(
    ("train", "text"),
    [
        (lambda run: run.train(nn.Sequential(run.model())), OTHER_NAME),
        (lambda run: run.train(run.model(), index=0, of=4, micro_batches=2), TOO_SMALL),
        (loop(spoil_weights=cut), r"first.weight is \(4, 4\) under the layout, and \(8, 4\) without it"),
    ],
)
def test_what_cannot_be_compared_is_refused(train: Callable[[Pass], object], text: str) -> None:
    with pytest.raises(BodyError, match=text):
        compared(train)


@pytest.mark.parametrize("missing", ["has_gradients", "is_over"])
def test_a_step_that_is_not_compared_is_refused(missing: str) -> None:
    def train(run: Pass) -> None:
        model = run.model()
        for step in run.steps():
            if missing == "is_over":
                step.has_gradients(model, torch.zeros(()))

    with pytest.raises(BodyError, match=rf"step 1 of the layout is over without a call of step\.{missing}\("):
        compared(train)


def test_micro_batches_weigh_what_they_have_of_the_terms() -> None:
    def masked(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = batch(step)
        targets[:2] = -100
        return inputs, targets

    unequal = TrainSpec(model=Net, batch=masked, loss=nn.functional.cross_entropy, optimizer=adam)
    training = dataclasses.replace(unequal, terms=lambda targets: int((targets != -100).sum()))

    assert off(compared(lambda run: run.train(run.model(), micro_batches=2), training)) == set()
    assert {(1, LOSS), (1, GRADIENT)} <= off(compared(lambda run: run.train(run.model(), micro_batches=2), unequal))
