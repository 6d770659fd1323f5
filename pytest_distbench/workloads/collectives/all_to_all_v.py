"""all_to_all_v: from every rank a part for every rank, of unequal sizes.

Rank r sends (r + d) mod n + 1 shares to rank d: every rank sends and receives the same sum, in unequal parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_distbench.workloads.collectives.operation import Buffers, Operation

if TYPE_CHECKING:
    from pytest_distbench.workloads.collectives.form import Form
    from pytest_distbench.workloads.collectives.inputs import Inputs
    from pytest_distbench.workloads.collectives.pattern import Pattern


def _shares(rank: int, size: int) -> list[int]:
    return [(rank + other) % size + 1 for other in range(size)]


def _all_shares(size: int) -> int:
    return size * (size + 1) // 2


def _splits(count: int, rank: int, size: int) -> list[int]:
    """Elements to, and from, each other rank."""
    share = count // _all_shares(size)
    return [share * number for number in _shares(rank, size)]


def _call(buffers: Buffers, form: Form) -> object:
    import torch.distributed as dist

    splits = _splits(buffers.sent.numel(), form.rank, form.size)
    return dist.all_to_all_single(
        buffers.received, buffers.sent, splits, splits, group=form.group, async_op=form.is_async
    )


def _expected(inputs: Inputs) -> Pattern:
    from pytest_distbench.workloads.collectives.pattern import Pattern

    parts = []
    for rank in range(inputs.world_size):
        splits = _splits(inputs.count, rank, inputs.world_size)
        begin = sum(splits[: inputs.rank])
        parts.append(inputs.of(rank)[begin : begin + splits[inputs.rank]])
    return Pattern.join(parts)


ALL_TO_ALL_V = Operation(
    name="all_to_all_v",
    busbw_factor=lambda n: (n - 1) / n,
    source="nccl-tests src/alltoallv.cu",
    call=_call,
    expected=_expected,
    granularity=_all_shares,
    alignment=16,
    in_place=(False,),
)
