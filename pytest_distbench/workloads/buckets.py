"""The bucket sweep: the same bytes, all_reduced in few tensors or in many. What gradients sent layer by layer cost.

pytest's process reads the tables and the checks, so nothing here imports torch before a rank runs it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pytest_distbench.errors import ConfigurationError
from pytest_distbench.workloads.collectives import operation
from pytest_distbench.workloads.protocol import dtype_of

if TYPE_CHECKING:
    import torch

    from pytest_distbench.worker.context import RankContext

    _Send = Callable[[Sequence[torch.Tensor], torch.Tensor], None]

TENSORS = (1, 2, 4, 8, 16, 32, 64, 128, 214)
"""Into how many tensors the bytes are cut. A ResNet-50 has 214 that are trained (ElasticDL's benchmark of FTlib)."""

RESNET50_BYTES = 23_555_082 * 4
"""Gradients of the same ResNet-50, for CIFAR-10, in float32."""

_ALIGNED_BYTES = 16
"""nccl-tests begins each buffer at a multiple of it."""


def _one_by_one(tensors: Sequence[torch.Tensor], _bucket: torch.Tensor) -> None:
    import torch.distributed as dist

    for tensor in tensors:
        dist.all_reduce(tensor)


def _coalesced(tensors: Sequence[torch.Tensor], _bucket: torch.Tensor) -> None:
    import torch.distributed as dist

    from pytest_distbench.worker.torch_internals import coalescing

    with coalescing(None):
        for tensor in tensors:
            dist.all_reduce(tensor)


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
"""How they are sent: one call each; one call for all, as torch's coalescing manager makes it; copied into one bucket
and back, as DDP does. A function takes the tensors, and memory for all of them."""


def tensor_lengths(elements: int, tensors: int, *, aligned: int = 1) -> list[int]:
    """Elements of each tensor, as equal as they can be; they begin at multiples of ``aligned`` if each has some."""
    if tensors > elements:
        raise ConfigurationError(f"{tensors} tensors of {elements} elements: there can be {elements} at most")
    if tensors * aligned > elements:
        aligned = 1
    shares, extra = divmod(elements // aligned, tensors)
    lengths = [(shares + (i < extra)) * aligned for i in range(tensors)]
    lengths[-1] += elements - sum(lengths)
    return lengths


def elements_of(message_bytes: int, dtype: str) -> int:
    """Elements of a message."""
    item = dtype_of(dtype).item_bytes
    if not message_bytes or message_bytes % item:
        raise ConfigurationError(f"{message_bytes} B are no whole number of {dtype} elements, which take {item} B each")
    return message_bytes // item


def bucket_sweep(rank: RankContext) -> None:
    """Record ``latency`` for each number of tensors and each way to send them; every result is checked.

    Of ``rank.params``: message_bytes, dtype, tensors, calls (keys of :data:`CALLS`), iterations, warmup.
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
