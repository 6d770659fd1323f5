"""A small convolutional net with group normalization, whose statistics no layout changes."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812 the field's name for it
from torch import nn

from pytest_distbench.layouts.training import TrainSpec

SAMPLES, EDGE, CLASSES = 8, 12, 10


def block(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, 2, 1), nn.GroupNorm(2, outputs), nn.ReLU())


def model() -> nn.Sequential:
    return nn.Sequential(block(3, 8), block(8, 16), nn.Flatten(), nn.Linear(16 * (EDGE // 4) ** 2, CLASSES))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (8, 3, 12, 12) of noise, and labels."""
    drawn = torch.Generator().manual_seed(step)
    images = torch.randn(SAMPLES, 3, EDGE, EDGE, generator=drawn)
    return images, torch.randint(CLASSES, (SAMPLES,), generator=drawn)


class Named(nn.Module):
    """Some modules of a sequence, under their names there."""

    def __init__(self, modules: dict[str, nn.Module]) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for module in self.children():
            x = module(x)
        return x


def stages(whole: nn.Sequential, ranks: int) -> list[nn.Module]:
    named = list(whole.named_children())
    ends = [len(named) * i // ranks for i in range(ranks + 1)]
    return [Named(dict(named[first:last])) for first, last in pairwise(ends)]


net = TrainSpec(
    model=model,
    batch=batch,
    loss=F.cross_entropy,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    blocks=lambda whole: [whole[0], whole[1]],
    stages=stages,
)
