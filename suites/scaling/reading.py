"""A small convolutional network on batches of 32x32 images: how fast it trains, and how long it waits for its input.

Model: alternating depthwise and pointwise convolutions, as in MobileNetV2 (Sandler et al., arXiv 1801.04381) without
its residuals: 4 thousand parameters, on GPUs 179 thousand. Recipe: SGD with momentum, ``batch`` images per rank and
step. It cannot learn anything, because generated labels are random. Its losses are judged all the same: they depend on
its samples and their order.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 the field's name for it
from torch import nn

from pytest_distbench.workloads.gradients import parallel
from pytest_distbench.workloads.inputs import batches
from pytest_distbench.workloads.rates import record_input_rate

if TYPE_CHECKING:
    from pytest_distbench import RankContext

STEPS = 30
"""Of each part of the training, unless the test says otherwise."""


def network(width: int) -> nn.Sequential:
    """Images (N, 3, H, W) to scores (N, 10)."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU6()]
    for channels in (width, 2 * width, 2 * width):
        layers += [
            nn.Conv2d(channels, channels, 3, 1, 1, groups=channels, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU6(),
            nn.Conv2d(channels, 2 * width, 1, bias=False),
            nn.BatchNorm2d(2 * width),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10))


def train(rank: RankContext) -> None:
    """Take steps on the input that ``rank.params`` describe: one by one with their parts, and then in one breath."""
    params = rank.params
    steps = params.get("steps", STEPS)
    torch.manual_seed(rank.seed)
    on_gpu = torch.empty(0, device=rank.device).is_cuda  # where it computes: a stand-in for a GPU says the CPU
    inputs = batches(
        rank,
        params["kind"],
        batch=params["batch"],
        workers=params.get("workers", 1),
        prefetch=params.get("prefetch", 2),
        pin=params.get("pin", True),
        storage=params.get("storage"),
    )
    net = network(128 if on_gpu else 16).to(rank.device)
    model = parallel(rank, net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    losses: list[torch.Tensor] = []

    def step(part: Callable[[str], AbstractContextManager[None]] = lambda name: nullcontext()) -> None:
        with part("load"):
            images, labels = next(inputs)
        with part("copy"):
            images = images.to(rank.device, non_blocking=True)
            labels = labels.to(rank.device, non_blocking=True)
        with part("forward"):
            scores = model(images)
        with part("loss"):
            loss = F.cross_entropy(scores, labels)
        with part("backward"):
            optimizer.zero_grad()
            loss.backward()
        with part("optimizer"):
            optimizer.step()
        losses.append(loss.detach())

    for _ in rank.timed("step", warmup=3, iterations=steps, identity=inputs.identity, facts=inputs.facts):
        step(rank.phase)
    rank.record("loss_curve", losses, better="curve", identity=inputs.identity)
    record_input_rate(rank, inputs, step, steps=steps, expected=params.get("expected"))
