"""ResNet-20 on the digits images to 97 % test accuracy: about 50 steps on 2 CPU ranks, one training per launch.

Data: the 1797 8x8 digits that scikit-learn ships (real images, no download), 1437 for training, 360 for testing.
Recipe: He et al. (arXiv 1512.03385, section 4.2), CIFAR form with option A shortcuts, 1 input channel (269 434
parameters); SGD with momentum, learning rate scaled linearly with the ranks after a warm-up; batch 64 per rank,
disjoint shards. Seed 0: the same software repeats it bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 the field's name for it
from digits import shared, shuffled_digits, split
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_distbench.workloads.schedules import warmup
from pytest_distbench.workloads.training import accuracy_over_ranks, make_deterministic, preset_of, sharded_batches

if TYPE_CHECKING:
    from pytest_distbench import RankContext


# Data


def digits(device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training images (1437, 1, 8, 8) and labels, test images (360, 1, 8, 8) and labels."""
    pixels, labels = shuffled_digits()
    images = pixels.unsqueeze(1).to(device) / 16
    images = (images - 0.305) / 0.376  # mean and standard deviation of the whole set
    return split(images, labels.to(device))


# Network


class Block(nn.Module):
    """Two 3x3 convolutions and a parameter-free shortcut: stride and zero padding of channels (option A)."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.stride = stride
        self.extra = channels - channels_in

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (N, channels_in, H, W) -> (N, channels, H/stride, W/stride)
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.extra // 2, self.extra // 2))
        return F.relu(y + shortcut)


class ResNet20(nn.Module):
    """Stem, three stages of three blocks with 16, 32 and 64 channels, average pooling, linear classifier."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        widths = [16] * 3 + [32] * 3 + [64] * 3
        before = [16, *widths[:-1]]
        self.blocks = nn.Sequential(*(Block(a, b, 1 if a == b else 2) for a, b in zip(before, widths, strict=True)))
        self.head = nn.Linear(64, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (N, 1, 8, 8) -> (N, classes)
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


# Training


@dataclass(frozen=True)
class Preset:
    """What differs between a training of seconds and the report's."""

    batch: int
    rate: float
    max_steps: int


PRESETS = {"small": Preset(batch=64, rate=0.1, max_steps=300)}


def train(rank: RankContext) -> None:
    """Train until the accuracy on the test images reaches ``rank.params["goal"]``."""
    preset = preset_of(rank, PRESETS)
    make_deterministic(rank.seed)
    images, labels, test_images, test_labels = digits(rank.device)
    rank.record("test_images_trained_on", shared(images, test_images), better="info", at_most=0)
    net = ResNet20().to(rank.device)
    model = net if rank.world_size == 1 else DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=preset.rate, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = warmup(optimizer, factor=rank.world_size, steps=20)
    batches = sharded_batches(rank, samples=len(images), batch=preset.batch)
    goal = rank.goal(
        "accuracy",
        target=rank.params["goal"],
        every=5,
        max_steps=preset.max_steps,
        min_steps=50,
        evaluation_samples=len(test_images),
    )
    for _ in goal.steps(samples_per_step=preset.batch * rank.world_size):
        chosen = next(batches)
        loss = F.cross_entropy(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        goal.check(lambda: accuracy_over_ranks(rank, net, test_images, test_labels), loss=loss)
