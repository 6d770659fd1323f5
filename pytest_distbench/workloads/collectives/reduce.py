"""reduce: all ranks' inputs reduced, in the root."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_distbench.workloads.collectives.operation import Buffers, Operation

if TYPE_CHECKING:
    from pytest_distbench.workloads.collectives.form import Form


def _call(buffers: Buffers, form: Form) -> object:
    import torch.distributed as dist

    return dist.reduce(buffers.received, form.global_root, op=form.op, group=form.group, async_op=form.is_async)


REDUCE = Operation(
    name="reduce",
    busbw_factor=lambda n: float(n > 1),
    source="nccl-tests src/reduce.cu",
    call=_call,
    expected=lambda inputs: inputs.reduced() if inputs.rank == inputs.root else None,
    in_place=(True, False),
    copies=True,
    reduces=True,
    is_rooted=True,
)
