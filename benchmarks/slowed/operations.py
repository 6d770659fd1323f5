"""The all_reduce of the sweep. torch is imported when a rank calls: pytest reads this file too."""

import time

from slower import work_more

from pytest_distbench.workloads.collectives import Operation


def call(buffers, form):
    import torch.distributed as dist

    start = time.perf_counter()
    dist.all_reduce(buffers.received, op=form.op, group=form.group)
    work_more(start)


ALL_REDUCE = Operation(
    name="slower_all_reduce",
    busbw_factor=lambda n: 2 * (n - 1) / n,
    source="nccl-tests src/all_reduce.cu",
    call=call,
    expected=lambda inputs: inputs.reduced(),
    reduces=True,
)
