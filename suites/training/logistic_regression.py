"""Task 2a of report 004: L2-regularised logistic regression on epsilon, to 89 % of the test rows or a loss of 0.2828.

Model: one weight for each of 2000 features, without a bias, started at zero. Recipe: synchronous SGD without momentum,
binary cross-entropy plus l2/2 |w|^2 with l2 = 2.5e-6; 128 rows per worker and step (the report's code has 100), each
worker its own of every epoch. Learning rate 4 for one worker, for k workers k times as much from the first step on;
halved when the validation loss has not fallen for two epochs; 164 epochs at most.

*small*: rows of the same width and norm, with a few factors in them that give the label, in files of the same format.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 the field's name for it
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_distbench.workloads import optimisation
from pytest_distbench.workloads.data import libsvm
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

L2 = 2.5e-6


@dataclass(frozen=True, kw_only=True)
class Preset:
    """What a training of seconds and the report's do not share."""

    epochs: int
    """At most."""
    batch: int = 128
    """Rows of a worker in a step."""
    rate: float = 4.0
    """Of one worker."""
    features: int = 2000
    """The first ones, which the model sees."""
    min_epochs: int = 0
    """The training goes on for so many, also if it meets the goal before."""


PRESETS = {"small": Preset(epochs=60, min_epochs=30), "report": Preset(epochs=164)}


class LogisticRegression(nn.Module):
    """One logit per row: a linear map without bias, started at zero."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, 1, bias=False)
        nn.init.zeros_(self.linear.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (N, features) -> (N,)
        return self.linear(x).squeeze(1)

    def penalty(self) -> torch.Tensor:
        """What is added to the loss of a row."""
        return L2 / 2 * self.linear.weight.square().sum()


def network(preset: Preset) -> LogisticRegression:
    """Rows to logits."""
    return LogisticRegression(preset.features)


def train(rank: RankContext) -> None:
    """Train until ``rank.params["metric"]`` of the test rows, *accuracy* or *loss*, reaches ``rank.params["goal"]``."""
    preset = preset_of(rank, PRESETS)
    metric = rank.params["metric"]
    make_deterministic(rank.seed)
    known, test = libsvm.load(folder_of(rank, "epsilon"))
    test_rows = test.inputs[:, : preset.features]
    per_epoch = epoch_steps(rank, samples=len(known.labels), batch=preset.batch)
    net = network(preset).to(rank.device)
    model = net if rank.world_size == 1 else DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=preset.rate)
    scaled = optimisation.warmup(optimizer, factor=rank.world_size, steps=0)
    falling = optimisation.plateau(optimizer)
    checkpoints = Checkpoints(rank, model=net, optimizer=optimizer, scaled=scaled, falling=falling)
    batches = sharded_batches(rank, samples=len(known.labels), batch=preset.batch, start=checkpoints.step, device="cpu")
    rates: list[float] = []

    def evaluate(step: int) -> float:
        accuracy, loss = mean_over_ranks(rank, net, test_rows, test.labels, right_of(), summed_loss)
        loss += net.penalty().item()
        falling.step(loss)
        checkpoints.save(step)
        return {"accuracy": accuracy, "loss": loss}[metric]

    goal = rank.goal(
        metric,
        target=rank.params["goal"],
        better={"accuracy": "higher", "loss": "lower"}[metric],
        every=per_epoch,
        max_steps=preset.epochs * per_epoch - checkpoints.step,
        min_steps=preset.min_epochs * per_epoch,
        evaluation_samples={"accuracy": len(test.labels), "loss": None}[metric],
    )
    for step in goal.steps(samples_per_step=preset.batch * rank.world_size):
        rates.append(optimizer.param_groups[0]["lr"])
        with rank.phase("load"):
            chosen = next(batches)
            rows, labels = known.inputs[chosen, : preset.features], known.labels[chosen]
        with rank.phase("copy"):
            rows, labels = rows.to(rank.device), labels.to(rank.device)
        with rank.phase("forward"):
            logits = model(rows)
        with rank.phase("loss"):
            loss = F.binary_cross_entropy_with_logits(logits, labels) + net.penalty()
        with rank.phase("backward"):
            optimizer.zero_grad()
            loss.backward()
        with rank.phase("optimizer"):
            optimizer.step()
        goal.check(partial(evaluate, step), loss=loss)
    record_setup(rank, net, optimizer, preset=preset, data="epsilon", schedule="x k, halved on a plateau")
    rank.record("learning_rate", rates, better="info")


def summed_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Binary cross-entropy, of all rows together."""
    return F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
