"""Ways to send gradients: what each costs, and the model of a training that sends them so.

One body measures the same bytes in few tensors or in many, another an all_reduce during computing, a third a training
whose gradients a hook compresses. pytest's process reads the tables and the checks, so nothing here imports torch
before a rank runs it.
"""

from __future__ import annotations

import functools
import unittest
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_distbench.errors import ConfigurationError, RecordingError, show
from pytest_distbench.records.kinds import LOWER_QUANTILE, quantile
from pytest_distbench.records.metric import metric_key
from pytest_distbench.workloads import COMMUNICATION
from pytest_distbench.workloads.collectives import operation
from pytest_distbench.workloads.protocol import item_bytes

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from pytest_distbench.worker.context import RankContext

    _Send = Callable[[Sequence[torch.Tensor], torch.Tensor], None]

TENSORS = (1, 2, 4, 8, 16, 32, 64, 128, 214)
"""Numbers of tensors that the bytes are cut into. ResNet-50 has 214 trained ones (ElasticDL's benchmark of FTlib)."""

RESNET50_BYTES = 23_555_082 * 4  # gradients of the same ResNet-50, for CIFAR-10, in float32

_ALIGNED_BYTES = 16  # nccl-tests begins each buffer at a multiple of it


def _one_by_one(tensors: Sequence[torch.Tensor], _bucket: torch.Tensor) -> None:
    import torch.distributed as dist

    for tensor in tensors:
        dist.all_reduce(tensor)


def _coalesced(tensors: Sequence[torch.Tensor], bucket: torch.Tensor) -> None:
    from pytest_distbench.worker.torch_internals import coalescing

    with coalescing(None):
        _one_by_one(tensors, bucket)


def _flattened(tensors: Sequence[torch.Tensor], bucket: torch.Tensor) -> None:
    import torch
    import torch.distributed as dist

    torch.cat([tensor.view(-1) for tensor in tensors], out=bucket)
    dist.all_reduce(bucket)
    for tensor, part in zip(tensors, bucket.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part)


CALLS: dict[str, _Send] = {
    "each": _one_by_one,
    "coalesced": _coalesced,
    "flattened": _flattened,
}
"""Functions that send tensors, given memory for all of them: one call each; one call for all, as torch's coalescing
manager makes it; copied into one bucket and back, as DDP does."""


def tensor_lengths(elements: int, tensors: int, *, aligned: int = 1) -> list[int]:
    """Elements of each tensor, as equal as possible; they begin at multiples of ``aligned`` if each has some."""
    if tensors > elements:
        raise ConfigurationError(f"{tensors} tensors of {elements} elements: there can be {elements} at most")
    if tensors * aligned > elements:
        aligned = 1
    shares, extra = divmod(elements // aligned, tensors)
    lengths = [(shares + (i < extra)) * aligned for i in range(tensors)]
    lengths[-1] += elements - sum(lengths)
    return lengths


def elements_of(message_bytes: int, dtype: str) -> int:
    """Number of elements of a message."""
    item = item_bytes(dtype)
    if message_bytes % item:
        raise ConfigurationError(f"{message_bytes} B are no whole number of {dtype} elements, which take {item} B each")
    return message_bytes // item


def bucket_sweep(rank: RankContext) -> None:
    """Record ``latency`` for each number of tensors and each way to send them; every result is checked.

    It reads from ``rank.params``: message_bytes, dtype, tensors, calls (keys of :data:`CALLS`), iterations, warmup.
    """
    import torch

    from pytest_distbench.workloads.calls import count_wrong_sums, expect_sums
    from pytest_distbench.workloads.memory import expect_room

    params = rank.params
    message_bytes, dtype = params["message_bytes"], getattr(torch, params["dtype"])
    elements = elements_of(message_bytes, params["dtype"])
    expect_sums(rank, params["dtype"])
    expect_room(rank, 2 * message_bytes, what=f"a message of {message_bytes} B and a bucket for it")
    message = torch.zeros(elements, dtype=dtype, device=rank.device)
    bucket = torch.zeros_like(message)
    identity = {"message_bytes": message_bytes, "dtype": params["dtype"], "redop": "sum", "cache": "hot"}
    facts = {"busbw_factor": operation("all_reduce").busbw_factor(rank.world_size)}
    for count in params["tensors"]:
        lengths = tensor_lengths(elements, count, aligned=max(1, _ALIGNED_BYTES // dtype.itemsize))
        tensors = message.split(lengths)
        for calls in params["calls"]:
            at = {"tensors": count, "calls": calls}
            if not rank.wants("latency", at):
                continue
            rank.progress(f"{count} tensors {calls}")

            send = functools.partial(CALLS[calls], tensors, bucket)
            warmup, iterations = params["warmup"], params["iterations"]
            for _ in rank.timed("latency", warmup=warmup, iterations=iterations, at=at, identity=identity, facts=facts):
                send()
            wrong, example = count_wrong_sums(rank, message, send)
            assert not wrong, f"{count} tensors, {calls}: {wrong} wrong elements over all ranks{example}"


MATRIX_DTYPES = ("float32", "float16", "bfloat16", "float64")  # that matrices can have


def overlap_fraction(communication_s: float, compute_s: float, both_s: float) -> float:
    """Share of the shorter of the two that is hidden behind the longer: 0 none, 1 all.

    IMB-NBC's definition: ``max(0, min(1, (t_pure + t_CPU - t_ovrl) / min(t_pure, t_CPU)))`` (Intel MPI Benchmarks user
    guide, "Measuring Communication and Computation Overlap").
    """
    return max(0.0, min(1.0, (communication_s + compute_s - both_s) / min(communication_s, compute_s)))


def overlap(rank: RankContext) -> None:
    """Record ``communication_time``, ``compute_time`` and ``both_time``, which are judged, and what follows from them.

    ``exposed_time`` is ``both_time - compute_time``, the communication that computing does not hide; ``overlap`` is
    :func:`overlap_fraction`. Both are shown, for the worst rank, from the 25th percentiles of its own timings.

    The all_reduce is asynchronous, and waited for after the multiplications. On CUDA it runs on the backend's own
    stream, the multiplications on the current one, which waits for it at the end.

    It reads from ``rank.params``: message_bytes, dtype, matrix (rows and columns), multiplications, iterations, warmup.
    """
    import torch
    import torch.distributed as dist

    from pytest_distbench.workloads.calls import count_wrong_sums, expect_sums
    from pytest_distbench.workloads.memory import expect_room

    params = rank.params
    message_bytes, matrix, dtype = params["message_bytes"], params["matrix"], getattr(torch, params["dtype"])
    elements = elements_of(message_bytes, params["dtype"])
    expect_sums(rank, params["dtype"])
    expect_room(rank, message_bytes + 3 * matrix**2 * dtype.itemsize, what="the message and three matrices")
    message = torch.zeros(elements, dtype=dtype, device=rank.device)
    left, right, product = (torch.rand(matrix, matrix, device=rank.device).to(dtype) for _ in range(3))

    def communicate() -> None:
        dist.all_reduce(message, async_op=True).wait()

    def compute() -> None:
        for _ in range(params["multiplications"]):
            torch.mm(left, right, out=product)

    def both() -> None:
        work = dist.all_reduce(message, async_op=True)
        compute()
        work.wait()

    identity = {name: params[name] for name in ("message_bytes", "dtype", "matrix", "multiplications")}
    parts = {"communication_time": communicate, "compute_time": compute, "both_time": both}
    for name, part in parts.items():
        for _ in rank.timed(name, warmup=params["warmup"], iterations=params["iterations"], identity=identity):
            part()
    own = {o.name: quantile(o.values, LOWER_QUANTILE) for o in rank.notebook.observations if o.name in parts}
    communication_s, compute_s, both_s = (own[name] for name in parts)
    rank.record("exposed_time", both_s - compute_s, unit="s", reduce="max", identity=identity)
    rank.record("overlap", overlap_fraction(communication_s, compute_s, both_s), reduce="min", identity=identity)
    wrong, example = count_wrong_sums(rank, message, both)
    assert not wrong, f"all_reduce while computing: {wrong} wrong elements over all ranks{example}"


_WHOLE_STEPS = 2  # steps before PowerSGD compresses: DDP makes its final buckets after the first


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """One way to send gradients."""

    register: Callable[[DistributedDataParallel, int], None] | None
    """Registers the hook at a model; the second argument is PowerSGD's rank. None for DDP's own all_reduce."""
    dtype: str = ""  # that the backend has to reduce; empty: the gradients' own
    takes_rank: bool = False  # whether it approximates matrices by some of a rank
    waits_for: str = ""  # why it cannot be used on a CPU next to a CUDA device, or ""


def _default(name: str) -> Callable[[DistributedDataParallel, int], None]:
    def register(model: DistributedDataParallel, _rank: int) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        model.register_comm_hook(None, getattr(default_hooks, name))

    return register


def _power_sgd(model: DistributedDataParallel, rank: int) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=_WHOLE_STEPS)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


HOOKS = {
    "none": Hook(register=None),
    "fp16": Hook(register=_default("fp16_compress_hook"), dtype="float16"),
    "bf16": Hook(register=_default("bf16_compress_hook"), dtype="bfloat16"),
    "powersgd": Hook(
        register=_power_sgd,
        takes_rank=True,
        waits_for="torch's PowerSGD waits for a CUDA device where there is one, and the gradients are on a CPU",
    ),
}
"""Hooks by the name that a test gives."""


_FIRST_BUCKET_BYTES = 2**20  # of DDP; gradients of more bytes are in several buckets


def compressed_training(rank: RankContext) -> None:
    """Record ``step_time``, ``gradient_bytes`` and ``gradient_error`` of a training whose gradients a hook sends.

    A step is forward and backward of a stack of linear layers under DDP; parameters and batches do not change, so that
    every number but the time repeats. ``gradient_bytes``: what a rank puts into collectives in a step, from the
    fingerprint; without one (a torch that records none) it is not recorded. ``gradient_error``: relative L2 distance of
    the first compressed gradient from the one that DDP gives without a hook; later ones of PowerSGD hold what earlier
    ones left out.

    It reads from ``rank.params``: hook, width, layers, batch, approximation_rank, iterations, warmup.
    """
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    params = rank.params
    hook = HOOKS[params["hook"]]
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
    model = make()
    _register(rank, params["hook"], model, params["approximation_rank"])
    for _ in range(_WHOLE_STEPS + 1):
        step(model)
    if hook.register is not None:
        distance = float((_gradient(model) - exact).norm() / exact.norm())
        rank.record("gradient_error", distance, better="lower", at=at, identity=identity)
    warmup, iterations = params["warmup"], params["iterations"]
    for _ in rank.timed("step_time", warmup=warmup, iterations=iterations, at=at, identity=identity):
        step(model)
    key = metric_key("step_time", at)
    if key in rank.watch.found and not rank.watch.found[key].missing:
        sent = sum(row.message_bytes * row.count for row in rank.watch.sends(key))
        rank.record("gradient_bytes", sent, unit="B", better="exact", reduce="max", at=at, identity=identity)


def _register(rank: RankContext, name: str, model: DistributedDataParallel, approximation_rank: int = 1) -> None:
    """Register a hook at the model, or skip in all ranks if it cannot work. A collective call."""
    import torch

    from pytest_distbench.workloads.calls import expect_sums

    hook = HOOKS[name]
    if hook.waits_for and rank.device.type == "cpu" and torch.cuda.is_available():
        raise unittest.SkipTest(f"{name}: {hook.waits_for}")
    if hook.dtype:
        expect_sums(rank, hook.dtype)
    if hook.register is None:
        return
    try:
        hook.register(model, approximation_rank)
    except TypeError as error:  # what DDP refuses a hook with
        raise unittest.SkipTest(f"{name}: {error}") from None


def _gradient(model: DistributedDataParallel) -> torch.Tensor:
    import torch

    return torch.cat([p.grad.detach().flatten() for p in model.parameters() if p.grad is not None]).double()


def parallel(rank: RankContext, model: nn.Module) -> nn.Module:
    """The model under DistributedDataParallel, or as it is if the run is without communication. A collective call.

    It reads from ``rank.params``: *communication*, ``on`` (default) or ``off``; *overlap*, ``on`` (default) or ``off``,
    for which :func:`average_gradients` sends the gradients after the backward pass; *compression*, a hook of
    :data:`HOOKS` that sends gradients as ``fp16`` or ``bf16`` (default ``none``).

    Args:
        rank: this process in its group, with the parameters.
        model: a model on the rank's device.

    Raises:
        RecordingError: a parameter is none of its values.
        SkipTest: torch or the backend does not support the hook here.
    """
    communication = rank.params.get("communication", "on")
    if communication not in COMMUNICATION:
        raise RecordingError(f"communication={show(communication)}; wanted one of {', '.join(COMMUNICATION)}")
    compression = rank.params.get("compression", "none")
    hooks = [name for name, hook in HOOKS.items() if not hook.takes_rank]
    if compression not in hooks:
        raise RecordingError(f"compression={show(compression)}; wanted one of {', '.join(hooks)}")
    if communication == "off" or not _overlaps(rank):
        return model
    from torch.nn.parallel import DistributedDataParallel

    ddp = DistributedDataParallel(model, device_ids=[rank.device] if rank.device.type == "cuda" else None)
    _register(rank, compression, ddp)
    return ddp


def average_gradients(rank: RankContext, model: nn.Module) -> None:
    """Send the gradients in one tensor after the backward pass, if :func:`parallel` left that to it. Collective.

    Phases: ``all_reduce``, and in it ``copy``, of the gradients into that tensor and back.
    """
    if rank.params.get("communication") == "off" or _overlaps(rank):
        return
    import torch
    import torch.distributed as dist

    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    with rank.phase("all_reduce"):
        with rank.phase("copy"):
            sent = torch.cat([gradient.view(-1) for gradient in gradients])
        dist.all_reduce(sent)
        with rank.phase("copy"):
            for gradient, part in zip(
                gradients, (sent / rank.world_size).split([g.numel() for g in gradients]), strict=True
            ):
                gradient.copy_(part.view_as(gradient))


def _overlaps(rank: RankContext) -> bool:
    overlap = rank.params.get("overlap", "on")
    if overlap not in ("on", "off"):
        raise RecordingError(f"overlap={show(overlap)}; wanted on or off")
    return bool(overlap == "on")
