"""broadcast: the root's message, in every rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_distbench.workloads.collectives.operation import Buffers, Operation

if TYPE_CHECKING:
    from pytest_distbench.workloads.collectives.form import Form


def _call(buffers: Buffers, form: Form) -> object:
    import torch.distributed as dist

    return dist.broadcast(buffers.received, src=form.global_root, group=form.group, async_op=form.is_async)


BROADCAST = Operation(
    name="broadcast",
    busbw_factor=lambda n: float(n > 1),
    source="nccl-tests src/broadcast.cu",
    call=_call,
    expected=lambda inputs: inputs.of(inputs.root),
    is_rooted=True,
)
