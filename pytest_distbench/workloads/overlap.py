"""Overlap: an all_reduce beside computing. How much of the communication a training would have to wait for.

What is measured is what Intel's MPI benchmarks (IMB-NBC) and PARAM's commsOverlapBench measure: communication alone,
computing alone, and both together. pytest's process reads the checks, so torch is imported when a rank runs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_distbench.records.kinds import FAST_SIDE
from pytest_distbench.records.summaries import quantile
from pytest_distbench.workloads.buckets import elements_of

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext

DTYPES = ("float32", "float16", "bfloat16", "float64")
"""That matrices can have."""


def overlap_fraction(communication_s: float, compute_s: float, both_s: float) -> float:
    """Share of the shorter of the two that is hidden behind the longer: 0 none, 1 all.

    IMB-NBC's definition: ``max(0, min(1, (t_pure + t_CPU - t_ovrl) / min(t_pure, t_CPU)))`` (Intel MPI Benchmarks user
    guide, "Measuring Communication and Computation Overlap").
    """
    return max(0.0, min(1.0, (communication_s + compute_s - both_s) / min(communication_s, compute_s)))


def overlap(rank: RankContext) -> None:
    """Record ``communication_time``, ``compute_time`` and ``both_time``, which are judged, and what follows from them.

    ``exposed_time`` is ``both_time - compute_time``, the communication that computing does not hide; ``overlap`` is
    :func:`overlap_fraction`. Both are shown, of the rank that does worst, from the 25th percentiles of its own clock.

    The all_reduce is asynchronous, and waited for after the multiplications. On CUDA it runs on the backend's own
    stream, the multiplications on the current one, which waits for it at the end.

    Of ``rank.params``: message_bytes, dtype, matrix (rows and columns), multiplications, iterations, warmup.
    """
    import torch
    import torch.distributed as dist

    from pytest_distbench.workloads.calls import count_wrong_sums, expect_sums
    from pytest_distbench.workloads.memory import expect_room

    params = rank.params
    message_bytes, matrix, dtype = params["message_bytes"], params["matrix"], getattr(torch, params["dtype"])
    elements = elements_of(message_bytes, params["dtype"])
    expect_sums(rank, params["dtype"])
    expect_room(rank, message_bytes + 3 * matrix**2 * dtype.itemsize, what="the message and three matrices")
    message = torch.zeros(elements, dtype=dtype, device=rank.device)
    left, right, product = (torch.rand(matrix, matrix, device=rank.device).to(dtype) for _ in range(3))

    def communicate() -> None:
        dist.all_reduce(message, async_op=True).wait()

    def compute() -> None:
        for _ in range(params["multiplications"]):
            torch.mm(left, right, out=product)

    def both() -> None:
        work = dist.all_reduce(message, async_op=True)
        compute()
        work.wait()

    identity = {name: params[name] for name in ("message_bytes", "dtype", "matrix", "multiplications")}
    parts = {"communication_time": communicate, "compute_time": compute, "both_time": both}
    for name, part in parts.items():
        for _ in rank.timed(name, warmup=params["warmup"], iterations=params["iterations"], identity=identity):
            part()
    own = {o.name: quantile(o.values, FAST_SIDE) for o in rank.notebook.observations if o.name in parts}
    communication_s, compute_s, both_s = (own[name] for name in parts)
    rank.record("exposed_time", both_s - compute_s, unit="s", reduce="max", identity=identity)
    rank.record("overlap", overlap_fraction(communication_s, compute_s, both_s), reduce="min", identity=identity)
    wrong, example = count_wrong_sums(rank, message, both)
    assert not wrong, f"all_reduce beside computing: {wrong} wrong elements over all ranks{example}"
