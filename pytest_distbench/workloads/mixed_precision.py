"""Mixed precision: weights in float16, their master copy in float32, and a loss scale that follows overflows.

Source: Micikevicius et al., arXiv 1710.03740, sections 3.1 and 3.2. The gradients of all ranks are added in float16, in
one tensor: an overflow in one rank is one in every rank's sum, so that all of them skip the same step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pytest_distbench.errors import RecordingError

LEAST_SCALE = 2.0**-14
"""Gradients that overflow at this scale are no question of the scale: the training has diverged."""


class LossScale:
    """What the loss is multiplied by, so that small gradients are not rounded to zero in float16.

    Divided by ``factor`` at an overflow; multiplied by it after ``window`` updates in a row without one.

    Args:
        initial: of the first step.
        window: updates without an overflow before it grows.
        most: it never grows beyond.
        factor: what it grows and shrinks by.
    """

    def __init__(self, initial: float, *, window: int, most: float = math.inf, factor: float = 2.0) -> None:
        self.value = initial
        self._window = window
        self._most = most
        self._factor = factor
        self._updates = 0

    def note(self, *, overflow: bool) -> None:
        """Take in how a step went.

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
        """What a later training goes on with."""
        return {"value": self.value, "updates": self._updates}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on from a saved state."""
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
        model: its weights become float16.
        make_optimizer: is given the master's parameters, float32.
        scale: of the loss.
        world_size: ranks that train together.
        max_norm: the averaged and unscaled gradient is clipped to; None: it is not.

    Attributes:
        norm: of the last step's gradient, averaged and unscaled, before it was clipped.
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
        """What a later training goes on with: the master, the optimizer's state and the scale."""
        return {
            "master": [master.detach() for master in self.master],
            "optimizer": self.optimizer.state_dict(),
            "scale": self.scale.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state; the model's weights are the master's, rounded."""
        with torch.no_grad():
            for master, saved in zip(self.master, state["master"], strict=True):
                master.copy_(saved)
        self._copy_master()
        self.optimizer.load_state_dict(state["optimizer"])
        self.scale.load_state_dict(state["scale"])
