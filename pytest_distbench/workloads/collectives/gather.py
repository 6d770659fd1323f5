"""gather: every rank's part, in the root."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_distbench.workloads.collectives.operation import Buffers, Counts, Operation

if TYPE_CHECKING:
    from pytest_distbench.workloads.collectives.form import Form


def _call(buffers: Buffers, form: Form) -> object:
    import torch.distributed as dist

    parts = buffers.parts if form.rank == form.root else None
    return dist.gather(buffers.sent, parts, dst=form.global_root, group=form.group, async_op=form.is_async)


GATHER = Operation(
    name="gather",
    busbw_factor=lambda n: (n - 1) / n,
    source="nccl-tests src/gather.cu",
    call=_call,
    expected=lambda inputs: inputs.of_all() if inputs.rank == inputs.root else None,
    counts=lambda elements, n: Counts(elements // n, elements),
    granularity=lambda n: n,
    alignment=16,
    in_place=(False,),
    is_rooted=True,
)
