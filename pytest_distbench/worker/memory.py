"""What optimizers remember, such as momentum: counted before and after the first step that a generation takes.

One that the body does not keep, or makes anew behind ``rank.training(...)``, remembers nothing when it goes on.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook


class OptimizerMemory:
    """Looks at each optimizer that steps before this generation's first training step is over."""

    def __init__(self) -> None:
        self._before: dict[weakref.ref[Optimizer], int] = {}
        self._hook: Any = register_optimizer_step_pre_hook(self._look)

    def _look(self, optimizer: Optimizer, *_: object) -> None:
        self._before.setdefault(weakref.ref(optimizer), count_states(optimizer))

    def after_step(self) -> tuple[int, int] | None:
        """States before and after the first training step; None: nothing stepped in it, or it is long over."""
        if self._hook is None or not self._before:
            return None
        self._hook.remove()
        self._hook = None
        after = sum(count_states(optimizer) for found in self._before if (optimizer := found()) is not None)
        return sum(self._before.values()), after

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Of the first optimizer that stepped; empty: none did, or it is gone."""
        optimizer = next((found() for found in self._before), None)
        return [] if optimizer is None else optimizer.param_groups


def count_states(optimizer: Optimizer) -> int:
    """Parameters for which an optimizer holds numbers from one step to the next; of SGD without momentum none."""
    return sum(
        any(isinstance(value, torch.Tensor) for value in state.values())
        for state in optimizer.state.values()
        if isinstance(state, dict)
    )
