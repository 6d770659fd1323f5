"""What goes wrong in the trainings of ``suites/scaling``: their files import this, and FAULT says which.

``scaling_faults.py`` writes FAULT. A fault is where people make it: in a rank, a loader, DDP's settings, an optimizer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from pytest_distbench.worker.checkpoints import permutation
from pytest_distbench.workloads import training
from pytest_distbench.workloads.data import cifar10
from pytest_distbench.workloads.models import MODELS, MobileNetV2

FAULT = ""

LOST_S = 0.12
"""By a rank or an optimizer in each step, of about 0.2 s on two cores."""
READING_S = 0.01
"""By each image of a loader."""


def _before(owner: type, name: str, act: Callable[[], object]) -> None:
    """Have a method act first."""
    method = getattr(owner, name)

    def acting(*arguments: Any, **options: Any) -> Any:
        act()
        return method(*arguments, **options)

    setattr(owner, name, acting)


def _with_options(owner: type, act: Callable[[nn.Module, dict[str, Any]], object]) -> None:
    """Have a module of torch's be made with other options than were given."""
    make = owner.__init__  # type: ignore[misc]

    def making(self: Any, module: nn.Module, *arguments: Any, **options: Any) -> None:
        act(module, options)
        make(self, module, *arguments, **options)

    owner.__init__ = making  # type: ignore[misc]


def slow_rank() -> None:
    if os.environ["RANK"] == "1":
        _before(DistributedDataParallel, "forward", lambda: time.sleep(LOST_S))


def slow_loader() -> None:
    decode = cifar10.decode

    def slowly(*arguments: Any) -> Any:
        time.sleep(READING_S)
        return decode(*arguments)

    cifar10.decode = slowly  # type: ignore[assignment]


def extra_barrier() -> None:
    _before(torch.optim.SGD, "step", dist.barrier)


def all_reduce_per_tensor() -> None:
    _with_options(DistributedDataParallel, lambda module, options: options.update(bucket_cap_mb=1e-6))


def unsynchronised_layer() -> None:
    def leave_out(module: nn.Module, _: dict[str, Any]) -> None:
        first = next(iter(dict(module.named_parameters())))
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, [first])  # type: ignore[no-untyped-call]

    _with_options(DistributedDataParallel, leave_out)


def sleep_in_the_optimizer() -> None:
    _before(torch.optim.SGD, "step", lambda: time.sleep(LOST_S))


def one_more_tensor() -> None:
    make, compute = MobileNetV2.__init__, MobileNetV2.forward

    def making(self: Any, classes: int) -> None:
        make(self, classes)
        self.temperature = nn.Parameter(torch.ones(1))

    def computing(self: Any, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = compute(self, images) * self.temperature
        return scores

    MobileNetV2.__init__, MobileNetV2.forward = making, computing  # type: ignore[method-assign]


def other_threads_of_one_rank() -> None:
    if os.environ["WORLD_SIZE"] == "1":
        torch.set_num_threads(2)


def compression_off() -> None:
    default_hooks.fp16_compress_hook = default_hooks.allreduce_hook


def half_a_batch() -> None:
    row = MODELS["mobilenet_v2"]
    MODELS["mobilenet_v2"] = replace(row, batch=lambda n, *shape: row.batch(n // int(os.environ["WORLD_SIZE"]), *shape))


def one_shard() -> None:
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    def rolled(samples: int, **of: int) -> torch.Tensor:
        return permutation(samples, **of).roll(rank * (samples // ranks))

    vars(training)["permutation"] = rolled


if FAULT:
    globals()[FAULT]()
