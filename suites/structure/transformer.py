"""A small transformer, trained three ways: DDP, FSDP2 and tensor parallelism. What is sent is what counts.

Model: 4 blocks of width 128 with 4 heads, 64 tokens, 0.8 million parameters; AdamW. Data: random tokens, since nothing
is learnt on a backend that moves none. ``suites/training/throughput.py`` trains a larger one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 the field's name for it
from torch import nn

if TYPE_CHECKING:
    from pytest_distbench import RankContext


@dataclass(frozen=True)
class Size:
    """Of a model, and of the sequences that a rank trains on in a step."""

    width: int
    heads: int
    blocks: int
    tokens: int
    length: int
    batch: int


SMALL = Size(width=128, heads=4, blocks=4, tokens=64, length=32, batch=4)


class Block(nn.Module):
    """Causal attention and a feed-forward part, each beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (N, T, width) -> the same
        y = self.norm1(x)
        q, k, v = (
            layer(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Tokens to the scores of the next ones."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.tokens, size.width)
        self.blocks = nn.ModuleList(Block(size.width, size.heads) for _ in range(size.blocks))
        self.head = nn.Linear(size.width, size.tokens)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:  # (N, T) -> (N, T, size.tokens)
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


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
