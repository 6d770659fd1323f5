"""all_to_all: from every rank a part for every rank, all of one size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_distbench.workloads.collectives.operation import Buffers, Operation

if TYPE_CHECKING:
    from pytest_distbench.workloads.collectives.form import Form
    from pytest_distbench.workloads.collectives.inputs import Inputs
    from pytest_distbench.workloads.collectives.pattern import Pattern


def _call(buffers: Buffers, form: Form) -> object:
    import torch.distributed as dist

    return dist.all_to_all_single(buffers.received, buffers.sent, group=form.group, async_op=form.is_async)


def _expected(inputs: Inputs) -> Pattern:
    from pytest_distbench.workloads.collectives.pattern import Pattern

    part = inputs.count // inputs.world_size
    own = slice(inputs.rank * part, (inputs.rank + 1) * part)
    return Pattern.join(inputs.of(rank)[own] for rank in range(inputs.world_size))


ALL_TO_ALL = Operation(
    name="all_to_all",
    busbw_factor=lambda n: (n - 1) / n,
    source="nccl-tests src/alltoall.cu",
    call=_call,
    expected=_expected,
    granularity=lambda n: n,
    alignment=16,
    in_place=(False,),
)
