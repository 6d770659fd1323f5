"""scatter: a part of the root's message in each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_distbench.workloads.collectives.operation import Buffers, Counts, Operation

if TYPE_CHECKING:
    from pytest_distbench.workloads.collectives.form import Form
    from pytest_distbench.workloads.collectives.inputs import Inputs
    from pytest_distbench.workloads.collectives.pattern import Pattern


def _call(buffers: Buffers, form: Form) -> object:
    import torch.distributed as dist

    parts = buffers.parts if form.rank == form.root else None
    return dist.scatter(buffers.received, parts, src=form.global_root, group=form.group, async_op=form.is_async)


def _expected(inputs: Inputs) -> Pattern:
    part = inputs.count // inputs.world_size
    return inputs.of(inputs.root)[inputs.rank * part : (inputs.rank + 1) * part]


SCATTER = Operation(
    name="scatter",
    busbw_factor=lambda n: (n - 1) / n,
    source="nccl-tests src/scatter.cu",
    call=_call,
    expected=_expected,
    counts=lambda elements, n: Counts(elements, elements // n),
    granularity=lambda n: n,
    alignment=16,
    in_place=(False,),
    is_rooted=True,
)
