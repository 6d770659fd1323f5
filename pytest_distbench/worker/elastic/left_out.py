"""What takes part in a training and was not handed over to it: no checkpoint keeps it, and nobody can compare it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer

_SCHEDULED = "initial_lr"
"""Key of the parameter groups of an optimizer that has a schedule of torch."""


def left_out(
    parts: Mapping[str, Any], optimizers: Iterable[Optimizer], *, drawn_from: Iterable[str], draws_samples: bool
) -> list[str]:
    """What was seen in a step and is none of the parts, nor held by one of them; each with the call that keeps it.

    ``drawn_from`` are the random streams that the step has drawn from, where the body does not keep them.
    """
    kept = [held for part in parts.values() for held in (part, *getattr(part, "__dict__", {}).values())]
    known = {id(held) for held in kept}
    owned = {id(p) for held in kept if isinstance(held, torch.nn.Module) for p in held.parameters()}
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    trained = [parameter for group in groups for parameter in group["params"]]
    found = [
        f"the optimizer {type(optimizer).__name__}, which steps: rank.training(optimizer=...)"
        for optimizer in optimizers
        if id(optimizer) not in known
    ]
    if foreign := sum(id(parameter) not in owned for parameter in trained):
        found.append(f"{foreign} of the {len(trained)} tensors that are trained: rank.training(model=...)")
    if any(_SCHEDULED in group for group in groups) and not any(isinstance(held, LRScheduler) for held in kept):
        found.append("the schedule of the learning rate: rank.training(schedule=...)")
    if streams := list(drawn_from):
        found.append(f"random streams ({', '.join(streams)}): rank.training(random=rank.random_streams())")
    others = [part for part in parts.values() if not isinstance(part, torch.nn.Module | Optimizer | LRScheduler)]
    if draws_samples and not others:
        found.append("what chooses the samples: rank.training(sampler=...), which has state_dict and load_state_dict")
    return found
