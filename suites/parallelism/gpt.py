"""A small GPT that takes 4 steps under each layout. Tokens are random: what counts is that all layouts agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812 the field's name for it
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
)

from pytest_distbench.layouts.training import TrainSpec
from pytest_distbench.workloads.models import Size, Transformer

SIZE = Size(tokens=64, width=32, heads=2, blocks=2, length=16, batch=8)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens, and those that follow them: (8, 16) each."""
    drawn = torch.Generator().manual_seed(step)
    tokens = torch.randint(SIZE.tokens, (SIZE.batch, SIZE.length + 1), generator=drawn)
    return tokens[:, :-1], tokens[:, 1:]


def loss(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def tensor_parallel(model: Transformer) -> Mapping[str, ParallelStyle]:
    """The feed-forward parts are cut into columns and rows, so that a block needs one all_reduce for them."""
    plan: dict[str, ParallelStyle] = {}
    for i in range(len(model.blocks)):
        plan |= {f"blocks.{i}.up": ColwiseParallel(), f"blocks.{i}.down": RowwiseParallel()}
    return plan


def sequence_parallel(model: Transformer) -> Mapping[str, ParallelStyle]:
    """Between the matrices each rank has a part of the sequence, of which it computes norms and shortcuts."""
    part, whole = Shard(1), Replicate()
    plan: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=whole, output_layouts=part),
        "head": ColwiseParallel(input_layouts=part, output_layouts=whole),
    }
    for i in range(len(model.blocks)):
        attention = ColwiseParallel(input_layouts=part, output_layouts=whole)
        block: dict[str, ParallelStyle] = {
            **dict.fromkeys(("query", "key", "value"), attention),
            "out": RowwiseParallel(input_layouts=whole, output_layouts=part),
            "norm1": SequenceParallel(),
            "norm2": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=part),
            "down": RowwiseParallel(output_layouts=part),
        }
        plan |= {f"blocks.{i}.{name}": style for name, style in block.items()}
    return plan


class Stage(nn.Module):
    """Some of the blocks, with what is before the first and behind the last of all."""

    def __init__(self, model: Transformer, first: int, last: int) -> None:
        super().__init__()
        self.embedding = model.embedding if first == 0 else nn.Identity()
        self.blocks = nn.ModuleDict({str(i): model.blocks[i] for i in range(first, last)})
        self.head = model.head if last == len(model.blocks) else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x)
        for block in self.blocks.values():
            x = block(x)
        return self.head(x)


def stages(model: Transformer, ranks: int) -> list[nn.Module]:
    ends = [len(model.blocks) * i // ranks for i in range(ranks + 1)]
    return [Stage(model, first, last) for first, last in pairwise(ends)]


gpt = TrainSpec(
    model=lambda: Transformer(SIZE),
    batch=batch,
    loss=loss,
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    schedule=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 4),
    max_norm=0.1,
    blocks=lambda model: model.blocks,
    tensor_parallel=tensor_parallel,
    stages=stages,
)
gpt_in_sequence = replace(gpt, tensor_parallel=sequence_parallel)
