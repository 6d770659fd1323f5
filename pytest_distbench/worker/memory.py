"""What optimizers remember, such as momentum, before and after the first step of a generation; and how often they step.

One that the body does not keep, or makes anew behind ``rank.training(...)``, remembers nothing when it goes on.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from pytest_distbench.worker import digests


@dataclass(frozen=True, slots=True)
class Beginning:
    """An optimizer as it was about to take its first step of a generation.

    It has digests of the parameters that it trains, and by slot of what it remembers; ``remembered`` are those that it
    held numbers of, and ``steps`` is what it had counted, in words.
    """

    remembered: int
    parameters: str
    moments: dict[str, str]
    steps: str
    rates: list[float]


class OptimizerMemory:
    """Looks at each optimizer that steps before this generation's first training step is over, and counts all steps."""

    def __init__(self) -> None:
        self._before: dict[weakref.ref[Optimizer], Beginning] = {}
        self._is_first = True
        self._updates, self._is_given_up = 0, False
        self._unused: tuple[torch.Tensor, torch.Tensor] | None = None
        self._hook: Any = register_optimizer_step_pre_hook(self._look)  # stays as long as the process

    def _look(self, optimizer: Optimizer, *_: object) -> None:
        if not self._updates:
            self._look_at_unused()
        self._updates += 1
        reference = weakref.ref(optimizer)
        if self._is_first and reference not in self._before:
            self._before[reference] = Beginning(
                remembered=count_states(optimizer),
                parameters=digests.of_parameters(optimizer),
                moments=digests.of_moments(optimizer),
                steps=digests.steps_of(optimizer),
                rates=digests.rates_of(optimizer),
            )

    def take_updates(self) -> tuple[int, bool]:
        """Steps of optimizers since the last call; and whether a gradient of the batch before was given up without one.

        Gradients that are accumulated stay where they are: their tensor is the same until an optimizer has stepped.
        """
        if not self._updates:
            self._look_at_unused()
        found = self._updates, self._is_given_up
        self._updates, self._is_given_up, self._unused = 0, False, None
        if not found[0]:
            parameters = (p for group in self.param_groups for p in group["params"])
            self._unused = next(((p, p.grad) for p in parameters if p.grad is not None), None)
        return found

    def _look_at_unused(self) -> None:
        if self._unused is not None:
            parameter, gradient = self._unused
            self._is_given_up = parameter.grad is not gradient
            self._unused = None

    def after_step(self) -> tuple[int, int] | None:
        """States before and after the first training step; None: nothing stepped in it, or it is long over."""
        if not self._is_first or not self._before:
            return None
        self._is_first = False
        return sum(b.remembered for b in self.beginnings), sum(map(count_states, self.optimizers))

    @property
    def optimizers(self) -> list[Optimizer]:
        """Those that stepped, as far as they are still there."""
        return [optimizer for found in self._before if (optimizer := found()) is not None]

    @property
    def beginnings(self) -> list[Beginning]:
        """How they began, in the order of their steps."""
        return list(self._before.values())

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Of the first optimizer that stepped; empty: none did, or it is gone."""
        return next((optimizer.param_groups for optimizer in self.optimizers), [])


def count_states(optimizer: Optimizer) -> int:
    """Parameters for which an optimizer holds numbers from one step to the next; of SGD without momentum none."""
    return sum(
        any(isinstance(value, torch.Tensor) for value in state.values())
        for state in optimizer.state.values()
        if isinstance(state, dict)
    )
