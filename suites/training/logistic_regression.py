"""L2-regularised logistic regression to 89 % test accuracy, as MLBench task 2a.

Data: is a handwritten digit even? The 1797 digits that scikit-learn ships, 64 pixels and a constant each, rows of unit
norm as in the epsilon set of the task. Recipe of the task: one weight vector, binary cross-entropy plus
l2/2 |w|^2 with l2 = 2.5e-6, SGD, learning rate 4 per rank (here with a warm-up), batch 128 per rank, disjoint shards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 the field's name for it
from digits import TRAINING_SAMPLES, shared, shuffled_digits, split
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_distbench.workloads.schedules import warmup
from pytest_distbench.workloads.training import accuracy_over_ranks, make_deterministic, preset_of, sharded_batches

if TYPE_CHECKING:
    from pytest_distbench import RankContext

L2 = 2.5e-6


def even_digits(device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training features (1437, 65) and labels (0. or 1.), test features (360, 65) and labels."""
    images, digits = shuffled_digits()
    pixels = images.flatten(1)
    known = pixels[:TRAINING_SAMPLES]
    pixels = (pixels - known.mean(0)) / (known.std(0) + 1e-6)
    features = F.normalize(torch.cat([pixels, torch.ones(len(pixels), 1)], 1)).to(device)
    return split(features, (digits % 2 == 0).float().to(device))


class LogisticRegression(nn.Module):
    """One logit per row: a linear map without bias, started at zero."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, 1, bias=False)
        nn.init.zeros_(self.linear.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (N, features) -> (N,)
        return self.linear(x).squeeze(1)


@dataclass(frozen=True)
class Preset:
    """What differs between a training of seconds and the report's."""

    batch: int
    rate: float
    max_steps: int


PRESETS = {"small": Preset(batch=128, rate=4.0, max_steps=600)}


def train(rank: RankContext) -> None:
    """Train until the accuracy on the test rows reaches ``rank.params["goal"]``."""
    preset = preset_of(rank, PRESETS)
    make_deterministic(rank.seed)
    rows, labels, test_rows, test_labels = even_digits(rank.device)
    rank.record("test_rows_trained_on", shared(rows, test_rows), better="info", at_most=0)
    net = LogisticRegression(rows.shape[1]).to(rank.device)
    model = net if rank.world_size == 1 else DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=preset.rate)
    schedule = warmup(optimizer, factor=rank.world_size, steps=10)
    batches = sharded_batches(rank, samples=len(rows), batch=preset.batch)
    goal = rank.goal(
        "accuracy",
        target=rank.params["goal"],
        every=10,
        max_steps=preset.max_steps,
        min_steps=150,
        evaluation_samples=len(test_rows),
    )
    for _ in goal.steps(samples_per_step=preset.batch * rank.world_size):
        chosen = next(batches)
        loss = F.binary_cross_entropy_with_logits(model(rows[chosen]), labels[chosen])
        loss = loss + L2 / 2 * net.linear.weight.square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        goal.check(lambda: accuracy_over_ranks(rank, net, test_rows, test_labels), loss=loss)
