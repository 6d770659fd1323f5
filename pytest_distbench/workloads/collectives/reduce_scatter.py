"""reduce_scatter: of all ranks' inputs reduced, a part in each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_distbench.workloads.collectives.operation import Buffers, Counts, Operation

if TYPE_CHECKING:
    from pytest_distbench.workloads.collectives.form import Form
    from pytest_distbench.workloads.collectives.inputs import Inputs
    from pytest_distbench.workloads.collectives.pattern import Pattern


def _call(buffers: Buffers, form: Form) -> object:
    import torch.distributed as dist

    # since torch 2.13 by another name; the older one warns there
    reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return reduce_scatter(buffers.received, buffers.sent, op=form.op, group=form.group, async_op=form.is_async)


def _expected(inputs: Inputs) -> Pattern:
    part = inputs.count // inputs.world_size
    return inputs.reduced()[inputs.rank * part : (inputs.rank + 1) * part]


REDUCE_SCATTER = Operation(
    name="reduce_scatter",
    busbw_factor=lambda n: (n - 1) / n,
    source="nccl-tests src/reduce_scatter.cu",
    call=_call,
    expected=_expected,
    counts=lambda elements, n: Counts(elements, elements // n),
    granularity=lambda n: n,
    alignment=16,
    in_place=(False, True),
    reduces=True,
    coalesces=True,
)
