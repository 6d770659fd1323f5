"""all_reduce: the sum over ranks, in every rank."""

from __future__ import annotations

from pytest_distbench.workloads.collectives.operation import Buffers, Operation


def _call(buffers: Buffers) -> None:
    import torch.distributed as dist

    dist.all_reduce(buffers.sent)


ALL_REDUCE = Operation(
    name="all_reduce",
    busbw_factor=lambda n: 2 * (n - 1) / n,
    source="nccl-tests src/all_reduce.cu",
    call=_call,
    expected=lambda inputs: inputs.combine(lambda rows: rows.sum(0)),
    options={"redop": "sum"},
)
