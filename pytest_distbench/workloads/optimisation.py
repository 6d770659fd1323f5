"""Parts of benchmark tasks besides torch's optimizers: schedules of the learning rate, and mixed precision.

Schedules are as torch's: call ``step()`` after each update. What torch has is not here: step decay is its
``MultiStepLR``, and it follows a warm-up in a ``ChainedScheduler``.

Mixed precision has weights in float16, their master copy in float32, and a loss scale that follows overflows. Source:
Micikevicius et al., arXiv 1710.03740, sections 3.1 and 3.2. The gradients of all ranks are added in float16, in one
tensor: an overflow in one rank is one in every rank's sum, so that all of them skip the same step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LinearLR, ReduceLROnPlateau

from pytest_distbench.errors import RecordingError
from pytest_distbench.worker.notebook import check_number, check_whole

EXPONENTIAL_START = 0.01  # where an exponential warm-up begins, as a share of the rate that it leads to


def warmup(optimizer: Optimizer, *, factor: float, steps: int) -> LinearLR:
    """Grow the rate from the optimizer's to ``factor`` times as much over ``steps``; at once if they are 0.

    Raises:
        RecordingError: no number, or no whole number of steps.
    """
    call = "warmup(...)"
    factor, steps = check_number(call, "factor", factor), check_whole(call, "steps", steps, least=0)
    for group in optimizer.param_groups:
        group["lr"] *= factor
    # torch's takes factors up to 1, so it rises to the scaled rate; over no step it would stay where it begins
    return LinearLR(optimizer, start_factor=min(1.0, 1 / factor) if steps else 1.0, total_iters=steps)


def linear_scaling(optimizer: Optimizer, *, world_size: int, epoch_steps: int, power: float = 1.0) -> LinearLR:
    """The linear scaling rule: over log2(k) epochs the rate grows to k times that of one worker.

    Source: Goyal et al., arXiv 1706.02677, section 2.2, with the length that MLBench gives it for k workers.

    Args:
        optimizer: optimizer with the learning rate of one worker.
        world_size: number of workers k.
        epoch_steps: number of steps in an epoch.
        power: exponent of k; 0.5: the square root rule; 0: the rate stays, as for a fixed batch shared by workers.

    Raises:
        RecordingError: no whole numbers of at least 1, or a power that is none.
    """
    call = "linear_scaling(...)"
    world_size = check_whole(call, "world_size", world_size, least=1)
    epoch_steps = check_whole(call, "epoch_steps", epoch_steps, least=1)
    factor = world_size ** check_number(call, "power", power)
    return warmup(optimizer, factor=factor, steps=round(math.log2(world_size) * epoch_steps))


def plateau(
    optimizer: Optimizer, *, factor: float = 0.5, epochs: int = 2, threshold: float = 0.01
) -> ReduceLROnPlateau:
    """Multiply the rate if the validation loss has not fallen for some epochs; call ``step(loss)`` after each epoch.

    It may fall to any rate; MLBench's code stops at that of one worker.

    Args:
        optimizer: optimizer whose rate changes; a warm-up of it may run at the same time.
        factor: factor by which the rate is multiplied.
        epochs: number of epochs in a row whose loss is not below the lowest one before by the threshold.
        threshold: absolute difference of losses.

    Raises:
        RecordingError: no whole number of epochs of at least 1.
    """
    call = "plateau(...)"
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
    """An exponential warm-up, and a decay in steps after some share of the training.

    Update n of W has ``0.01 ** (1 - n / W)`` of the rate. MLBench's code counts from 0, and is one update behind.

    Args:
        optimizer: optimizer with the learning rate after the warm-up.
        warmup_steps: number of steps of the warm-up; the last one has the whole rate.
        total_steps: number of steps of the training.
        remain: share of the training after which the rate decays for the first time.
        interval: share of the training between two decays.
        decays: largest number of decays.
        factor: factor by which a decay multiplies the rate.

    Raises:
        RecordingError: no whole numbers, or shares of a training that are none.
    """
    call = "exponential_warmup(...)"
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

    Source: Vaswani et al., arXiv 1706.03762, section 5.3, for a rate that is given instead of the model's width. The
    first update has a rate above 0; that of MLBench's code has none.

    Raises:
        RecordingError: no whole number of steps of at least 1.
    """
    call = "inverse_square_root(...)"
    steps = check_whole(call, "warmup_steps", warmup_steps, least=1)
    return _by_update(optimizer, lambda number: min(number / steps, math.sqrt(steps / number)))


def _by_update(optimizer: Optimizer, factor: Callable[[int], float]) -> LambdaLR:
    """Make a schedule of updates 1, 2, ...; torch counts from 0 those that were taken."""
    return LambdaLR(optimizer, lambda taken: factor(taken + 1))


LEAST_SCALE = 2.0**-14  # gradients that overflow at this scale are no question of the scale: the training has diverged


class LossScale:
    """The factor of the loss that keeps small gradients from being rounded to zero in float16.

    It is divided by ``factor`` at an overflow, and multiplied by it after ``window`` updates in a row without one.

    Args:
        initial: scale of the first step.
        window: number of updates without an overflow before the scale grows.
        most: largest scale.
        factor: factor by which the scale grows and shrinks.
    """

    def __init__(self, initial: float, *, window: int, most: float = math.inf, factor: float = 2.0) -> None:
        self.value = initial
        self._window = window
        self._most = most
        self._factor = factor
        self._updates = 0

    def note(self, *, overflow: bool) -> None:
        """Update the scale after a step.

        Raises:
            RecordingError: gradients overflow at the smallest scale, too.
        """
        if overflow:
            self.value /= self._factor
            self._updates = 0
            if self.value < LEAST_SCALE:
                raise RecordingError(
                    f"gradients overflow float16 even at a loss scale of {self.value * self._factor:g}: the training "
                    "has diverged"
                )
            return
        self._updates += 1
        if self._updates == self._window:
            self.value = min(self.value * self._factor, self._most)
            self._updates = 0

    def state_dict(self) -> dict[str, float]:
        """State from which a later training continues."""
        return {"value": self.value, "updates": self._updates}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Continue from a saved state."""
        self.value, self._updates = state["value"], int(state["updates"])


class MixedPrecision:
    """A model in float16 that is trained through a master copy of its weights in float32.

    ::

        mixed = MixedPrecision(model, torch.optim.Adam, scale=LossScale(2**10, window=128), world_size=2, max_norm=5.0)
        mixed.backward(loss)        # once or several times
        mixed.average(weight)       # over the ranks, unscaled; a collective call
        if mixed.step():            # clips and updates; False: an overflow, nothing was updated
            schedule.step()

    Args:
        model: model whose weights become float16.
        make_optimizer: makes the optimizer of the master's parameters, float32.
        scale: scale of the loss.
        world_size: number of ranks that train together.
        max_norm: norm to which the averaged and unscaled gradient is clipped, or None.

    Attributes:
        norm: norm of the last step's gradient, averaged and unscaled, before it was clipped.
    """

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
        *,
        scale: LossScale,
        world_size: int,
        max_norm: float | None = None,
    ) -> None:
        self.model = model
        self.scale = scale
        self._world_size = world_size
        self._max_norm = math.inf if max_norm is None else max_norm
        self._weights = [p for p in model.parameters() if p.requires_grad]
        self.master = [nn.Parameter(p.detach().to(torch.float32, copy=True)) for p in self._weights]
        self.norm = 0.0
        model.half()
        self.optimizer = make_optimizer(self.master)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of a loss times the scale to those of the model, in float16."""
        torch.autograd.backward(loss * self.scale.value)

    def average(self, weight: float) -> None:
        """Give the master the gradients of all ranks, added and divided by the sum of their weights. Collective.

        Before they are added they are divided by the number of ranks, as float16 holds no number above 65504.

        Args:
            weight: what this rank's losses since the last step were sums of: 1 for a mean, tokens for a sum over them.
        """
        gradients = [w.grad if w.grad is not None else torch.zeros_like(w) for w in self._weights]
        total = torch.cat([gradient.flatten() for gradient in gradients]) / self._world_size
        weights = torch.tensor([float(weight)], device=total.device)
        if self._world_size > 1:
            dist.all_reduce(total)
            dist.all_reduce(weights)
        exact = total.float() * (self._world_size / self.scale.value) / weights
        for master, part in zip(self.master, exact.split([w.numel() for w in self._weights]), strict=True):
            master.grad = part.view_as(master)
        self.model.zero_grad()

    def step(self) -> bool:
        """Clip, update the master and the model from it; or skip the step if the gradients overflowed.

        Returns:
            Whether anything was updated: the same in every rank.

        Raises:
            RecordingError: gradients overflow at the smallest scale, too.
        """
        self.norm = nn.utils.clip_grad_norm_(self.master, self._max_norm).item()
        overflow = not math.isfinite(self.norm)
        self.scale.note(overflow=overflow)
        if overflow:
            return False
        self.optimizer.step()
        self._copy_master()
        return True

    def _copy_master(self) -> None:
        with torch.no_grad():
            for weights, master in zip(self._weights, self.master, strict=True):
                weights.copy_(master)

    def state_dict(self) -> dict[str, Any]:
        """State from which a later training continues: the master, the optimizer's state and the scale."""
        return {
            "master": [master.detach() for master in self.master],
            "optimizer": self.optimizer.state_dict(),
            "scale": self.scale.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; the model's weights are the master's, rounded."""
        with torch.no_grad():
            for master, saved in zip(self.master, state["master"], strict=True):
                master.copy_(saved)
        self._copy_master()
        self.optimizer.load_state_dict(state["optimizer"])
        self.scale.load_state_dict(state["scale"])
