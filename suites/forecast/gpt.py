"""Two blocks of a GPT of 7 billion parameters, spread over the ranks in four ways. Its tokens are random.

``params`` has ``way`` and ``samples``: those of a rank, or those of all ranks, which have an equal share each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 the field's name for it
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from pytest_distbench.workloads.models import Size, Transformer

if TYPE_CHECKING:
    from pytest_distbench import RankContext

RANKS_PER_NODE = 8
SIZE = Size(tokens=32_000, width=4096, heads=32, blocks=2, length=2048, batch=1)
SMALL = Size(tokens=1000, width=256, heads=4, blocks=4, length=64, batch=1)
"""For DDP, whose gradients need memory."""


def sharded(net: Transformer, mesh: DeviceMesh) -> nn.Module:
    """FSDP2 in bfloat16; over two axes of a mesh it shards along the second one and replicates along the first."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for block in net.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(net, mesh=mesh, mp_policy=policy)
    return net


def spread(net: Transformer, way: str, ranks: int) -> nn.Module:
    """The network on its ranks: ``ddp``, ``fsdp``, ``hsdp`` (sharded in a node) or ``tp`` (in a node, and FSDP2)."""
    if way == "ddp":
        return nn.parallel.DistributedDataParallel(net)
    if way == "fsdp":
        return sharded(net, init_device_mesh("cpu", (ranks,)))
    mesh = init_device_mesh("cpu", (ranks // RANKS_PER_NODE, RANKS_PER_NODE), mesh_dim_names=("nodes", "node"))
    if way == "hsdp":
        return sharded(net, mesh)
    for block in net.blocks:
        columns = dict.fromkeys(("query", "key", "value", "up"), ColwiseParallel())
        parallelize_module(block, mesh["node"], {**columns, **dict.fromkeys(("out", "down"), RowwiseParallel())})
    return sharded(net, mesh["nodes"])


def train(rank: RankContext) -> None:
    """Take a step."""
    size = SMALL if rank.params["way"] == "ddp" else replace(SIZE, blocks=rank.params.get("blocks", SIZE.blocks))
    samples = rank.params["samples"] if rank.params["is_weak"] else rank.params["samples"] // rank.world_size
    model = spread(Transformer(size), rank.params["way"], rank.world_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in rank.timed("step", warmup=2, iterations=3):
        tokens = torch.randint(0, size.tokens, (samples, size.length + 1))
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
