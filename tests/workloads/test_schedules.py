"""Schedules of the learning rate, beside values by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, MultiStepLR

from pytest_distbench.errors import RecordingError
from pytest_distbench.workloads.schedules import (
    exponential_warmup,
    inverse_square_root,
    linear_scaling,
    plateau,
    warmup,
)


def optimizer_of(rate: float = 1.0) -> SGD:
    return SGD([torch.zeros(1)], lr=rate)


def rates(optimizer: Optimizer, schedule: LRScheduler, updates: int) -> list[float]:
    """The rate of each update."""
    found = []
    for _ in range(updates):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize(
    ("factor", "steps", "expected"),
    [
        (4.0, 3, [0.5, 1.0, 1.5, 2.0, 2.0]),
        (2.0, 0, [1.0, 1.0]),
        (1.0, 2, [0.5, 0.5, 0.5, 0.5]),
        (math.sqrt(2), 1, [0.5, math.sqrt(0.5), math.sqrt(0.5)]),
    ],
)
def test_a_warm_up_leads_from_the_rate_to_a_multiple_of_it(factor: float, steps: int, expected: list[float]) -> None:
    optimizer = optimizer_of(0.5)

    assert rates(optimizer, warmup(optimizer, factor=factor, steps=steps), len(expected)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("world_size", "expected"),
    [
        (1, [0.02] * 9),
        (2, [0.02, 0.025, 0.03, 0.035, 0.04, 0.04, 0.04, 0.04, 0.04]),
        (4, [0.02, 0.0275, 0.035, 0.0425, 0.05, 0.0575, 0.065, 0.0725, 0.08]),
    ],
)
def test_k_workers_reach_k_times_the_rate_after_log2_k_epochs(world_size: int, expected: list[float]) -> None:
    """Epochs of four steps."""
    optimizer = optimizer_of(0.02)
    schedule = linear_scaling(optimizer, world_size=world_size, epoch_steps=4)

    assert rates(optimizer, schedule, 9) == pytest.approx(expected)


@pytest.mark.parametrize(("power", "last"), [(1.0, 0.08), (0.5, 0.04), (0.0, 0.02)])
def test_the_rate_follows_a_power_of_the_workers(power: float, last: float) -> None:
    optimizer = optimizer_of(0.02)
    schedule = linear_scaling(optimizer, world_size=4, epoch_steps=3, power=power)

    assert rates(optimizer, schedule, 7) == pytest.approx([0.02 + (last - 0.02) * done / 6 for done in range(7)])


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([1.0, 0.98, 0.96, 0.94], [1, 1, 1, 1]),  # falls all the time
        ([1.0, 0.995, 0.991], [1, 1, 0.5]),  # by less than 0.01
        ([1.0, 1.2, 0.5, 0.6, 0.4], [1, 1, 1, 1, 1]),  # never twice in a row
        ([1.0, 1.0, 1.0, 1.0, 1.0], [1, 1, 0.5, 0.5, 0.25]),
    ],
)
def test_the_rate_is_halved_at_a_plateau_of_two_epochs(losses: list[float], expected: list[float]) -> None:
    optimizer = optimizer_of()
    schedule = plateau(optimizer)
    found = []
    for loss in losses:
        schedule.step(loss)
        found.append(optimizer.param_groups[0]["lr"])

    assert found == expected


def test_a_plateau_lowers_what_a_warm_up_has_reached() -> None:
    optimizer = optimizer_of()
    rising, falling = warmup(optimizer, factor=4, steps=2), plateau(optimizer, epochs=1)
    assert rates(optimizer, rising, 3) == pytest.approx([1, 2.5, 4])
    for loss in (1.0, 1.0):
        falling.step(loss)

    assert rates(optimizer, rising, 2) == pytest.approx([2, 2])


def test_an_exponential_warm_up_is_followed_by_halvings() -> None:
    """Report 004's GNMT in 100 steps: after 40 % of them, and then every 5 %, four times."""
    optimizer = optimizer_of(2e-3)
    found = rates(optimizer, exponential_warmup(optimizer, warmup_steps=20, total_steps=100), 100)

    assert found[0] == pytest.approx(2e-3 * 0.01 ** (19 / 20))
    assert found[9] == pytest.approx(2e-4), "half way, of a hundredth a tenth"
    ratios = [b / a for a, b in pairwise(found[:20])]
    assert ratios == pytest.approx([100 ** (1 / 20)] * 19)
    halvings = [n for n, (a, b) in enumerate(pairwise(found[20:]), start=22) if b != a]
    assert halvings == [41, 46, 51, 56]
    assert found[19:40] == pytest.approx([2e-3] * 21)
    assert found[-1] == pytest.approx(2e-3 / 16)


def test_the_inverse_square_root_follows_a_linear_warm_up() -> None:
    """Report 004's Transformer: 1000 steps of warm-up."""
    optimizer = optimizer_of(1.976e-3)
    found = rates(optimizer, inverse_square_root(optimizer, warmup_steps=1000), 4000)

    assert [found[n - 1] / 1.976e-3 for n in (1, 250, 1000, 1001, 4000)] == pytest.approx(
        [0.001, 0.25, 1.0, math.sqrt(1000 / 1001), 0.5]
    )


def test_step_decay_follows_a_warm_up_in_a_chain() -> None:
    optimizer = optimizer_of(0.1)
    schedule = ChainedScheduler([warmup(optimizer, factor=2, steps=2), MultiStepLR(optimizer, [3, 4])])

    assert rates(optimizer, schedule, 6) == pytest.approx([0.1, 0.15, 0.2, 0.02, 0.002, 0.002])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: warmup(optimizer, factor=3, steps=5),
        lambda optimizer: linear_scaling(optimizer, world_size=4, epoch_steps=3),
        lambda optimizer: exponential_warmup(optimizer, warmup_steps=3, total_steps=20),
        lambda optimizer: inverse_square_root(optimizer, warmup_steps=3),
    ],
)
def test_a_schedule_that_was_saved_goes_on_where_it_was(make: Callable[[Optimizer], LRScheduler]) -> None:
    optimizer = optimizer_of()
    schedule = make(optimizer)
    rates(optimizer, schedule, 4)
    states = [optimizer.state_dict(), schedule.state_dict()]
    other = optimizer_of(7.0)
    again = make(other)
    for part, state in zip((other, again), states, strict=True):
        part.load_state_dict(state)

    assert rates(other, again, 12) == rates(optimizer, schedule, 12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda o: warmup(None, factor=1, steps=1), r"warmup\(...\): wanted an optimizer of torch, found None"),  # type: ignore[arg-type]
        (lambda o: warmup(o, factor=0, steps=1), "wanted a factor above 0, found 0"),
        (lambda o: warmup(o, factor=2, steps=1.5), "steps=1.5; wanted a whole number"),  # type: ignore[arg-type]
        (lambda o: linear_scaling(o, world_size=True, epoch_steps=1), "world_size=True; wanted"),
        (
            lambda o: linear_scaling(o, world_size=2, epoch_steps=0),
            "epoch_steps=0; wanted a whole number of at least 1",
        ),
        (lambda o: linear_scaling(o, world_size=2, epoch_steps=1, power="1"), "power='1'; wanted"),  # type: ignore[arg-type]
        (lambda o: plateau(o, epochs=0), "epochs=0; wanted a whole number of at least 1"),
        (lambda o: plateau("sgd"), "wanted an optimizer of torch, found 'sgd'"),  # type: ignore[arg-type]
        (lambda o: exponential_warmup(o, warmup_steps=0, total_steps=1), "warmup_steps=0; wanted"),
        (
            lambda o: exponential_warmup(o, warmup_steps=1, total_steps=10, remain=40),
            "wanted shares of the training, found remain=40, interval=0.05",
        ),
        (lambda o: inverse_square_root(o, warmup_steps=0), "warmup_steps=0; wanted"),
    ],
)
def test_what_makes_no_schedule_is_refused(make: Callable[[Optimizer], Any], message: str) -> None:
    with pytest.raises(RecordingError, match=message):
        make(optimizer_of())
