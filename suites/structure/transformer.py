"""A small transformer, trained three ways: DDP, FSDP2 and tensor parallelism. What is sent is what counts.

Model: ``pytest_distbench/workloads/models.py``, the small one; AdamW. Data: random tokens, since nothing is
learnt on a backend that moves none. ``suites/training/throughput.py`` trains a larger one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 the field's name for it
from torch import nn

from pytest_distbench.workloads.models import SMALL, Transformer

if TYPE_CHECKING:
    from pytest_distbench import RankContext


# Three ways to spread it over the ranks


def with_ddp(rank: RankContext, net: nn.Module) -> nn.Module:
    """Every rank has all of it; gradients are averaged."""
    return nn.parallel.DistributedDataParallel(net, device_ids=[rank.device] if rank.device.type == "cuda" else None)


def with_fsdp(rank: RankContext, net: Transformer) -> nn.Module:
    """Every rank has a part of each tensor; blocks are gathered when they are needed."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(rank.device.type, (rank.world_size,))
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net


def with_tp(rank: RankContext, net: Transformer) -> nn.Module:
    """Two ranks share the feed-forward parts, and as many groups of two as there are share the batches."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh(rank.device.type, (rank.world_size // 2, 2), mesh_dim_names=("dp", "tp"))
    for block in net.blocks:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return net


WAYS = {"ddp": with_ddp, "fsdp": with_fsdp, "tp": with_tp}


def train(rank: RankContext) -> None:
    """Take some steps, spread as ``rank.params["way"]`` says."""
    torch.manual_seed(rank.seed)
    model = WAYS[rank.params["way"]](rank, Transformer(SMALL).to(rank.device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in rank.timed("step", warmup=3, iterations=5):
        tokens = torch.randint(0, SMALL.tokens, (SMALL.batch, SMALL.length + 1), device=rank.device)
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
