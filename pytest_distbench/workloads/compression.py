"""Compression of gradients: torch's communication hooks in a DDP training: time, bytes and the error of the gradient.

pytest's process reads the table, so torch is imported when a rank runs it. A new hook is one row.
"""

from __future__ import annotations

import unittest
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_distbench.errors import look_up
from pytest_distbench.records.metric import metric_key

if TYPE_CHECKING:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from pytest_distbench.worker.context import RankContext

_WHOLE_STEPS = 2
"""Steps before PowerSGD compresses: DDP makes its final buckets after the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """One way to send gradients.

    Attributes:
        register: gives it to a model; the second argument is PowerSGD's rank.
        dtype: that the backend has to reduce; empty: the gradients' own.
        takes_rank: whether it approximates matrices by some of a rank.
        no_cpu: why it cannot be used on a CPU in this process; empty: it can.
    """

    register: Callable[[DistributedDataParallel, int], None]
    dtype: str = ""
    takes_rank: bool = False
    no_cpu: Callable[[], str] = lambda: ""


def _none(_model: DistributedDataParallel, _rank: int) -> None:
    """DDP's own all_reduce."""


def _fp16(model: DistributedDataParallel, _rank: int) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model.register_comm_hook(None, default_hooks.fp16_compress_hook)


def _bf16(model: DistributedDataParallel, _rank: int) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model.register_comm_hook(None, default_hooks.bf16_compress_hook)


def _power_sgd(model: DistributedDataParallel, rank: int) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=_WHOLE_STEPS)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def _waits_for_cuda() -> str:
    import torch

    found = torch.cuda.is_available()
    return (
        "torch's PowerSGD waits for a CUDA device where there is one, and the gradients are on a CPU" if found else ""
    )


HOOKS = {
    "none": Hook(register=_none),
    "fp16": Hook(register=_fp16, dtype="float16"),
    "bf16": Hook(register=_bf16, dtype="bfloat16"),
    "powersgd": Hook(register=_power_sgd, takes_rank=True, no_cpu=_waits_for_cuda),
}
"""By the name that a test gives."""


def hook_named(name: object) -> Hook:
    """Look a hook up."""
    return look_up(HOOKS, name, "hook")


_FIRST_BUCKET_BYTES = 2**20
"""Of DDP; gradients of more bytes are in several buckets."""


def compressed_training(rank: RankContext) -> None:
    """Record ``step_time``, ``gradient_bytes`` and ``gradient_error`` of a training whose gradients a hook sends.

    A step is forward and backward of a stack of linear layers under DDP; parameters and batches do not change, so
    that every number but the time repeats. ``gradient_bytes``: what a rank puts into collectives in a step, from the
    fingerprint; without one (a torch that records none) it is not recorded. ``gradient_error``: relative L2 distance of
    the first compressed gradient from the one that DDP gives without a hook; later ones of PowerSGD hold what earlier
    ones left out.

    Of ``rank.params``: hook, width, layers, batch, approximation_rank, iterations, warmup.
    """
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    params = rank.params
    hook = hook_named(params["hook"])
    at = {"hook": params["hook"]}
    sizes = {name: params[name] for name in ("width", "layers", "batch")}
    identity = {**sizes, **({"approximation_rank": params["approximation_rank"]} if hook.takes_rank else {})}
    width = params["width"]

    def make() -> DistributedDataParallel:
        torch.manual_seed(rank.seed)
        layers = [layer for _ in range(params["layers"]) for layer in (torch.nn.Linear(width, width), torch.nn.Tanh())]
        return DistributedDataParallel(torch.nn.Sequential(*layers).to(rank.device))

    torch.manual_seed(1000 + rank.rank)
    batch = torch.randn(params["batch"], width).to(rank.device)

    def step(model: DistributedDataParallel) -> None:
        model.zero_grad(set_to_none=True)
        model(batch).square().mean().backward()

    plain = make()
    gradient_bytes = sum(p.numel() * p.element_size() for p in plain.parameters())
    if hook.takes_rank and dist.get_backend() == "gloo" and gradient_bytes > _FIRST_BUCKET_BYTES:
        raise unittest.SkipTest(
            f"{params['hook']}: torch's hook waits in gloo's own two threads, and on several buckets for ever; one of "
            "at most 1 MiB is one bucket"
        )
    step(plain)
    exact = _gradient(plain)
    expect_support(rank, params["hook"])
    model = make()
    try:
        hook.register(model, params["approximation_rank"])
    except TypeError as error:  # what DDP refuses a hook with
        raise unittest.SkipTest(f"{params['hook']}: {error}") from None
    for _ in range(_WHOLE_STEPS + 1):
        step(model)
    if hook.register is not _none:
        distance = float((_gradient(model) - exact).norm() / exact.norm())
        rank.record("gradient_error", distance, better="lower", at=at, identity=identity)
    warmup, iterations = params["warmup"], params["iterations"]
    for _ in rank.timed("step_time", warmup=warmup, iterations=iterations, at=at, identity=identity):
        step(model)
    fingerprint = rank.watch.found.get(metric_key("step_time", at))
    if fingerprint is not None and not fingerprint.missing:
        sent = sum(row.message_bytes * row.count for row in fingerprint.collectives)
        rank.record("gradient_bytes", sent, unit="B", better="exact", reduce="max", at=at, identity=identity)


def expect_support(rank: RankContext, name: str) -> None:
    """Skip in all ranks where the hook of this name cannot work. A collective call."""
    from pytest_distbench.workloads.calls import expect_sums

    hook = hook_named(name)
    if rank.device.type == "cpu" and (reason := hook.no_cpu()):
        raise unittest.SkipTest(f"{name}: {reason}")
    if hook.dtype:
        expect_sums(rank, hook.dtype)


def _gradient(model: DistributedDataParallel) -> torch.Tensor:
    import torch

    return torch.cat([p.grad.detach().flatten() for p in model.parameters() if p.grad is not None]).double()
