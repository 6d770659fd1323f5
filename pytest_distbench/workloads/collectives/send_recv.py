"""send_recv: every rank sends to the next one, and receives from the one before, in a ring."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_distbench.workloads.collectives.operation import Buffers, Operation

if TYPE_CHECKING:
    from pytest_distbench.workloads.collectives.form import Form


def _call(buffers: Buffers, form: Form) -> object:
    import torch.distributed as dist

    following, before = form.ranks[(form.rank + 1) % form.size], form.ranks[form.rank - 1]
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, buffers.sent, following, form.group),
            dist.P2POp(dist.irecv, buffers.received, before, form.group),
        ]
    )
    if form.is_async:
        return works
    for work in works:
        work.wait()
    return None


SEND_RECV = Operation(
    name="send_recv",
    busbw_factor=lambda n: float(n > 1),
    source="nccl-tests src/sendrecv.cu",
    call=_call,
    expected=lambda inputs: inputs.of((inputs.rank - 1) % inputs.world_size),
    in_place=(False,),
)
