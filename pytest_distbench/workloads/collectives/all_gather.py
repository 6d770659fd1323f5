"""all_gather: every rank's part, in every rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_distbench.workloads.collectives.operation import Buffers, Counts, Operation

if TYPE_CHECKING:
    from pytest_distbench.workloads.collectives.form import Form


def _call(buffers: Buffers, form: Form) -> object:
    import torch.distributed as dist

    # since torch 2.13 by another name; the older one warns there
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return all_gather(buffers.received, buffers.sent, group=form.group, async_op=form.is_async)


ALL_GATHER = Operation(
    name="all_gather",
    busbw_factor=lambda n: (n - 1) / n,
    source="nccl-tests src/all_gather.cu",
    call=_call,
    expected=lambda inputs: inputs.of_all(),
    counts=lambda elements, n: Counts(elements // n, elements),
    granularity=lambda n: n,
    alignment=16,
    in_place=(False, True),
    coalesces=True,
)
