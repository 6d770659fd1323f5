"""Bodies the benchmarks launch. Apart from the benchmarks, so that importing them costs a rank nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext


def barrier(_rank: RankContext) -> None:
    """One barrier."""
    import torch.distributed as dist

    dist.barrier()


def points(rank: RankContext) -> None:
    """all_reduce at three sizes and a training step, each long enough that more iterations would not steady it."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    for size, iterations in ((4096, 120), (2**20, 80), (2**24, 20)):
        x = torch.zeros(size // 4)
        for _ in rank.timed("all_reduce", warmup=5, iterations=iterations, at={"message_bytes": size}):
            dist.all_reduce(x)
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.randn(64, 512)
    for _ in rank.timed("ddp_step", warmup=3, iterations=40):
        loss = model(data).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
