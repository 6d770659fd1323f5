"""Task 1a of report 004: ResNet-20 on CIFAR-10, to 80 % top-1 on the test set (its light goal: 70 %).

Network: He et al., arXiv 1512.03385, section 4.2, the CIFAR form with parameter-free shortcuts (option A): 269,722
parameters. The report's own code projects the shortcuts, which makes 272,474; its text cites the paper.

Recipe: synchronous SGD, Nesterov momentum 0.9, weight decay 1e-4, cross-entropy; 128 images per worker and step, each
worker its own of every epoch; random crops of the image with four more pixels on each side, and mirror images, as in
the paper. Learning rate 0.02 for one worker, over log2(k) epochs it grows to k times as much; halved when the
validation loss has not fallen for two epochs; 164 epochs at most.

*small*: a quarter as wide, on the digits images of scikit-learn in files of CIFAR-10's format, where each pixel is
drawn as 4 x 4: averaged again, they are 8 x 8. No crops or mirror images of digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 the field's name for it
from digits import shared
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_distbench.workloads import optimisation
from pytest_distbench.workloads.data import cifar10
from pytest_distbench.workloads.data.sets import folder_of
from pytest_distbench.workloads.training import (
    Checkpoints,
    epoch_steps,
    make_deterministic,
    mean_over_ranks,
    preset_of,
    record_setup,
    right_of,
    sharded_batches,
)

if TYPE_CHECKING:
    from pytest_distbench import RankContext


@dataclass(frozen=True, kw_only=True)
class Preset:
    """What a training of seconds and the report's do not share."""

    batch: int
    """Images of a worker in a step."""
    rate: float
    """Of one worker."""
    epochs: int
    """At most."""
    padding: int
    """Pixels around an image that a crop may reach into."""
    mirrored: float
    """Share of mirror images."""
    averaged: int
    """Edge of the squares of pixels that are made one."""
    width: int = 16
    """Channels of the first stage."""
    scaling: float = 1.0
    """The rate of k workers is k to this power times as high: 0 where they share a fixed batch."""
    min_epochs: int = 0
    """The training goes on for so many, also if it meets the goal before."""


PRESETS = {
    "small": Preset(batch=32, rate=0.05, epochs=8, padding=0, mirrored=0.0, averaged=4, width=4, min_epochs=8),
    "report": Preset(batch=128, rate=0.02, epochs=164, padding=4, mirrored=0.5, averaged=1),
}


# Data


def augmented(images: torch.Tensor, padding: int, mirrored: float) -> torch.Tensor:
    """A random crop of each image (N, C, H, W) with black around it, and of some the mirror image."""
    count, _, height, width = images.shape
    top, left = torch.randint(2 * padding + 1, (2, count, 1))
    rows, columns = top + torch.arange(height), left + torch.arange(width)
    columns = torch.where(torch.rand(count, 1) < mirrored, columns.flip(1), columns)
    each = torch.arange(count).view(-1, 1, 1)
    padded = F.pad(images, (padding,) * 4)
    return padded[each, :, rows.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2)


class Pixels(nn.Module):
    """Bytes (N, 3, H, W) to normalised numbers, whose squares of pixels are averaged."""

    mean: torch.Tensor
    deviation: torch.Tensor

    def __init__(self, averaged: int) -> None:
        super().__init__()
        self.averaged = averaged
        mean, deviation = torch.tensor([[0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]]).view(2, 3, 1, 1)
        self.register_buffer("mean", mean, persistent=False)  # of CIFAR-10's training set, by channel
        self.register_buffer("deviation", deviation, persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d((images.float() / 255 - self.mean) / self.deviation, self.averaged)


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
    """Stem, three stages of three blocks, each twice as wide as the one before, average pooling, linear classifier."""

    def __init__(self, width: int = 16, *, colours: int = 3, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(colours, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        widths = [width] * 3 + [2 * width] * 3 + [4 * width] * 3
        before = [width, *widths[:-1]]
        self.blocks = nn.Sequential(*(Block(a, b, 1 if a == b else 2) for a, b in zip(before, widths, strict=True)))
        self.head = nn.Linear(4 * width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (N, colours, H, W) -> (N, classes)
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def network(preset: Preset) -> nn.Sequential:
    """Images as they are stored to the scores of classes."""
    return nn.Sequential(Pixels(preset.averaged), ResNet20(preset.width))


# Training


def train(rank: RankContext) -> None:
    """Train until the accuracy on the test images reaches ``rank.params["goal"]``."""
    preset = preset_of(rank, PRESETS)
    make_deterministic(rank.seed)
    known, test = cifar10.load(folder_of(rank, "cifar10"))
    rank.record(
        "test_images_trained_on", shared(known.inputs, test.inputs), better="info", at_most=len(test.labels) // 100
    )
    per_epoch = epoch_steps(rank, samples=len(known.labels), batch=preset.batch)
    net = network(preset).to(rank.device)
    model = net if rank.world_size == 1 else DistributedDataParallel(net)
    torch.manual_seed(rank.seed + rank.rank)  # ranks augment otherwise
    optimizer = torch.optim.SGD(net.parameters(), lr=preset.rate, momentum=0.9, nesterov=True, weight_decay=1e-4)
    rising = optimisation.linear_scaling(
        optimizer, world_size=rank.world_size, epoch_steps=per_epoch, power=preset.scaling
    )
    falling = optimisation.plateau(optimizer)
    checkpoints = Checkpoints(rank, model=net, optimizer=optimizer, rising=rising, falling=falling)
    batches = sharded_batches(rank, samples=len(known.labels), batch=preset.batch, start=checkpoints.step, device="cpu")
    rates: list[float] = []
    top5 = 0.0

    def evaluate(step: int) -> float:
        nonlocal top5
        top1, top5, loss = mean_over_ranks(rank, net, test.inputs, test.labels, right_of(), right_of(5), summed_loss)
        falling.step(loss)
        checkpoints.save(step)
        return top1

    goal = rank.goal(
        "accuracy",
        target=rank.params["goal"],
        every=per_epoch,
        max_steps=preset.epochs * per_epoch - checkpoints.step,
        min_steps=preset.min_epochs * per_epoch,
        evaluation_samples=len(test.labels),
    )
    for step in goal.steps(samples_per_step=preset.batch * rank.world_size):
        rates.append(optimizer.param_groups[0]["lr"])
        with rank.phase("load"):
            chosen = next(batches)
            images = augmented(known.inputs[chosen], preset.padding, preset.mirrored)
        with rank.phase("copy"):
            images, labels = images.to(rank.device), known.labels[chosen].to(rank.device)
        with rank.phase("forward"):
            scores = model(images)
        with rank.phase("loss"):
            loss = F.cross_entropy(scores, labels)
        with rank.phase("backward"):
            optimizer.zero_grad()
            loss.backward()
        with rank.phase("optimizer"):
            optimizer.step()
            rising.step()
        goal.check(partial(evaluate, step), loss=loss)
    record_setup(rank, net[1], optimizer, preset=preset, data="cifar10", schedule="x k, halved on a plateau")
    rank.record("learning_rate", rates, better="info")
    rank.record("final_top5", top5, better="floor", identity={"evaluation_samples": len(test.labels)})


def summed_loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy, of all samples together."""
    return F.cross_entropy(scores, labels, reduction="sum")
