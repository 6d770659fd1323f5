"""barrier: nothing is sent, and no rank goes on before all have come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_distbench.workloads.collectives.operation import Buffers, Operation

if TYPE_CHECKING:
    from pytest_distbench.workloads.collectives.form import Form


def _call(_buffers: Buffers, form: Form) -> object:
    import torch.distributed as dist

    return dist.barrier(group=form.group, async_op=form.is_async)


BARRIER = Operation(
    name="barrier",
    busbw_factor=lambda n: 0.0,
    source="nothing is sent",
    call=_call,
    expected=None,
    granularity=lambda n: 0,
)
