"""Which steps of torch's optimizers begin a training step.

Steps of optimizers without a backward pass between them belong together, whichever optimizers they are. A training step
begins with the first of them, of the optimizer that steps first of all, and ends where the next one begins. So an
optimizer that a framework steps once per parameter group, one that calls its base class's step, and a second optimizer
that steps after the first make one training step; several backward passes that are accumulated, or that a closure runs
inside the optimizer's step, are parts of it.

Nothing is hooked into autograd: its counter shows that it recorded operations since the last step. Gradients that come
without autograd (set by hand, or by a CUDA graph) are new if the first of them is.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator
from types import FrameType

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from pytest_distbench.worker import torch_internals


@contextlib.contextmanager
def training_steps(begin: Callable[[], None]) -> Iterator[None]:
    """Call ``begin`` where a training step begins: right before the step of its first optimizer."""
    steps = _Steps(begin)
    hooks = [
        register_optimizer_step_pre_hook(torch_internals.uncompiled(steps.before)),
        register_optimizer_step_post_hook(torch_internals.uncompiled(steps.after)),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _Steps:
    """Calls ``begin`` before each training step, by hooks of the optimizer that stepped first; holds no tensor."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self._begin = begin
        self._first: weakref.ref[Optimizer] | None = None
        self._inside: FrameType | None = None
        self._recorded: int | None = None
        self._leading = _Leading(None)

    def before(self, optimizer: Optimizer, *_: object) -> None:
        self._first = self._first or weakref.ref(optimizer)
        if optimizer is not self._first():
            return
        if _is_running(self._inside):  # a step that overrides another calls it
            return
        self._inside = sys._getframe(_HOOKED)
        recorded, parameter = torch_internals.graph_nodes(), _first_with_gradient(optimizer)
        is_same_step = recorded is not None and recorded == self._recorded and not self._leading.begins_step(parameter)
        self._recorded = recorded
        if not is_same_step:
            self._leading = _Leading(parameter)
            self._begin()

    def after(self, optimizer: Optimizer, *_: object) -> None:
        if self._first is not None and optimizer is self._first():
            self._inside = None


_HOOKED = 2
"""Number of frames from a step hook up to the call of the optimizer's step: one between them disables the compiler."""


def _is_running(frame: FrameType | None) -> bool:
    """Whether a frame is still on this thread's stack; no hook is called at the end of a step that raised."""
    above = sys._getframe() if frame is not None else None
    while above is not None and above is not frame:
        above = above.f_back
    return above is not None


class _Leading:
    """The optimizer's first parameter that had a gradient when a training step began, and that gradient."""

    def __init__(self, parameter: torch.Tensor | None) -> None:
        gradient = parameter.grad if parameter is not None else None
        self._parameter = weakref.ref(parameter) if parameter is not None else None
        self._gradient = weakref.ref(gradient) if gradient is not None else None
        self._version = _version(gradient)

    def begins_step(self, parameter: torch.Tensor | None) -> bool:
        """Whether the optimizer's first parameter with a gradient, now, is the same with a new gradient: a new step."""
        if parameter is None or self._parameter is None or self._gradient is None:
            return True
        if parameter is not self._parameter():
            return False
        is_kept = parameter.grad is self._gradient() and _version(parameter.grad) == self._version is not None
        return not is_kept or parameter.is_cuda  # a graph that is replayed leaves no trace


def _first_with_gradient(optimizer: Optimizer) -> torch.Tensor | None:
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return next((parameter for parameter in parameters if parameter.grad is not None), None)


def _version(gradient: torch.Tensor | None) -> int | None:
    return None if gradient is None or gradient.is_inference() else gradient._version
