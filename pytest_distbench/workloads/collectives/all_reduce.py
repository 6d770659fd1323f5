"""all_reduce: all ranks' inputs reduced, in every rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_distbench.workloads.collectives.operation import Buffers, Operation

if TYPE_CHECKING:
    from pytest_distbench.workloads.collectives.form import Form


def _call(buffers: Buffers, form: Form) -> object:
    import torch.distributed as dist

    return dist.all_reduce(buffers.received, op=form.op, group=form.group, async_op=form.is_async)


ALL_REDUCE = Operation(
    name="all_reduce",
    busbw_factor=lambda n: 2 * (n - 1) / n,
    source="nccl-tests src/all_reduce.cu",
    call=_call,
    expected=lambda inputs: inputs.reduced(),
    in_place=(True, False),
    copies=True,
    reduces=True,
    coalesces=True,
)
