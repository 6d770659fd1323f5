"""A decoder-only transformer as GPT-2's, without dropout and without learned positions.

Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019): pre-norm blocks of causal
attention and a feed-forward part four times as wide, with GELU. Embedding and head have weights of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 the field's name for it
from torch import nn


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
"""0.8 million parameters: a step takes a CPU milliseconds."""

LARGE = Size(width=768, heads=12, blocks=12, tokens=16384, length=1024, batch=8)
"""110 million parameters, as GPT-2's smallest."""


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
        z: torch.Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return z


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
        scores: torch.Tensor = self.head(x)
        return scores
