"""Schedules of the learning rate that benchmark tasks prescribe, as torch's: call ``step()`` after each update.

What torch has is not here: step decay is its ``MultiStepLR``, and it follows a warm-up in a ``ChainedScheduler``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LinearLR, ReduceLROnPlateau

from pytest_distbench.errors import RecordingError
from pytest_distbench.worker.arguments import check_number, check_whole, refuse

EXPONENTIAL_START = 0.01
"""Where an exponential warm-up begins, as a share of the rate that it leads to."""


def warmup(optimizer: Optimizer, *, factor: float, steps: int) -> LinearLR:
    """The rate grows from that of the optimizer to ``factor`` times as much, over so many steps; 0: at once.

    Raises:
        RecordingError: no optimizer of torch, a factor that is not above 0, or no whole number of steps.
    """
    call = "warmup(...)"
    _check_optimizer(call, optimizer)
    factor, steps = check_number(call, "factor", factor), check_whole(call, "steps", steps, least=0)
    if factor <= 0:
        refuse(call, "a factor above 0", factor)
    for group in optimizer.param_groups:
        group["lr"] *= factor
    # torch's takes factors up to 1, so it rises to the scaled rate; over no step it would stay where it begins
    return LinearLR(optimizer, start_factor=min(1.0, 1 / factor) if steps else 1.0, total_iters=steps)


def linear_scaling(optimizer: Optimizer, *, world_size: int, epoch_steps: int, power: float = 1.0) -> LinearLR:
    """The linear scaling rule: over log2(k) epochs the rate grows to k times that of one worker.

    Source: Goyal et al., arXiv 1706.02677, section 2.2, with the length that MLBench gives it for k workers.

    Args:
        optimizer: whose rate is that of one worker.
        world_size: k.
        epoch_steps: in an epoch.
        power: of k; 0.5: the square root rule, 0: a fixed batch that workers share keeps its rate.

    Raises:
        RecordingError: no optimizer of torch, no whole numbers of at least 1, or a power that is none.
    """
    call = "linear_scaling(...)"
    world_size = check_whole(call, "world_size", world_size, least=1)
    epoch_steps = check_whole(call, "epoch_steps", epoch_steps, least=1)
    factor = world_size ** check_number(call, "power", power)
    return warmup(optimizer, factor=factor, steps=round(math.log2(world_size) * epoch_steps))


def plateau(
    optimizer: Optimizer, *, factor: float = 0.5, epochs: int = 2, threshold: float = 0.01
) -> ReduceLROnPlateau:
    """The rate is multiplied where the validation loss has not fallen for some epochs: ``step(loss)`` after each.

    Args:
        optimizer: whose rate it is; a warm-up of it goes on beside this.
        factor: of the rate.
        epochs: in a row whose loss is not below the lowest one before by the threshold.
        threshold: absolute.

    Raises:
        RecordingError: no optimizer of torch, or no whole number of epochs of at least 1.
    """
    call = "plateau(...)"
    _check_optimizer(call, optimizer)
    patience = check_whole(call, "epochs", epochs, least=1) - 1  # torch's: how many are put up with
    return ReduceLROnPlateau(optimizer, factor=factor, patience=patience, threshold=threshold, threshold_mode="abs")


def exponential_warmup(
    optimizer: Optimizer,
    *,
    warmup_steps: int,
    total_steps: int,
    remain: float = 0.4,
    interval: float = 0.05,
    decays: int = 4,
    factor: float = 0.5,
) -> LambdaLR:
    """An exponential warm-up from a hundredth of the rate, and a decay in steps after some share of the training.

    Args:
        optimizer: whose rate is that after the warm-up.
        warmup_steps: the last of which has the whole rate.
        total_steps: of the training.
        remain: share of the training after which the rate is multiplied for the first time.
        interval: share of the training between two times.
        decays: how often at most.
        factor: by which.

    Raises:
        RecordingError: no optimizer of torch, no whole numbers, or shares of a training that are none.
    """
    call = "exponential_warmup(...)"
    _check_optimizer(call, optimizer)
    warmup_steps = check_whole(call, "warmup_steps", warmup_steps, least=1)
    total_steps = check_whole(call, "total_steps", total_steps, least=1)
    decays = check_whole(call, "decays", decays, least=0)
    if not (0 <= remain <= 1 and 0 < interval <= 1):
        raise RecordingError(f"{call}: wanted shares of the training, found remain={remain!r}, interval={interval!r}")
    milestones = [round((remain + number * interval) * total_steps) for number in range(decays)]

    def of_update(number: int) -> float:
        if number < warmup_steps:
            return EXPONENTIAL_START ** (1 - number / warmup_steps)
        return factor ** sum(number > milestone for milestone in milestones)

    return _by_update(optimizer, of_update)


def inverse_square_root(optimizer: Optimizer, *, warmup_steps: int) -> LambdaLR:
    """A linear warm-up from 0 to the optimizer's rate, and from there a decay by the square root of the updates.

    Source: Vaswani et al., arXiv 1706.03762, section 5.3, for a rate that is given instead of the model's width.

    Raises:
        RecordingError: no optimizer of torch, or no whole number of steps of at least 1.
    """
    call = "inverse_square_root(...)"
    _check_optimizer(call, optimizer)
    steps = check_whole(call, "warmup_steps", warmup_steps, least=1)
    return _by_update(optimizer, lambda number: min(number / steps, math.sqrt(steps / number)))


def _by_update(optimizer: Optimizer, factor: Callable[[int], float]) -> LambdaLR:
    """The rate of update 1, 2, ...; torch counts those that were taken."""
    return LambdaLR(optimizer, lambda taken: factor(taken + 1))


def _check_optimizer(call: str, value: object) -> None:
    if not isinstance(value, Optimizer):
        refuse(call, "an optimizer of torch", value)
