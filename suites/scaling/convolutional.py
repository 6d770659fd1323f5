"""A step of a model of the reports, with its parts as phases: what report 003 measured on 1, 2, 4 and 8 workers.

Models: ``pytest_distbench/workloads/models.py``. Recipe: SGD, momentum 0.9, the same batch of random numbers at every
step (synthetic input: tf_cnn_benchmarks without a data set), of each rank its own, copied from the host. Their losses
are judged: they depart where a rank takes half of its batch, or another rank's. On GPUs images of 224 x 224 of 1000
classes, on CPUs of 32 x 32 of ten, and the small GPT; ``gpt`` in bfloat16. Of ``rank.params``: model, batch (of this
rank); communication, overlap and compression are read by ``parallel``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pytest_distbench.workloads.gradients import average_gradients, parallel
from pytest_distbench.workloads.models import build, model_named
from pytest_distbench.workloads.rates import record_rate
from pytest_distbench.workloads.training import record_setup

if TYPE_CHECKING:
    from pytest_distbench import RankContext


@dataclass(frozen=True)
class Size:
    """Of images in pixels, and of the loop."""

    edge: int
    classes: int
    warmup: int
    iterations: int


SIZES = {
    "cuda": Size(edge=224, classes=1000, warmup=10, iterations=50),
    "cpu": Size(edge=32, classes=10, warmup=3, iterations=10),
}
ON_CPUS = {"gpt": "gpt_small"}
"""A step of what is left out here takes a CPU minutes."""


def train(rank: RankContext) -> None:
    """Take steps."""
    device = torch.empty(0, device=rank.device).device.type  # where it computes: a stand-in for a GPU says the CPU
    size, name = SIZES[device], rank.params["model"]
    name = ON_CPUS.get(name, name) if device == "cpu" else name
    row = model_named(name)
    torch.manual_seed(rank.seed)
    net = build(name, classes=size.classes).to(rank.device)
    torch.manual_seed(rank.seed + rank.rank)
    inputs, targets = row.batch(rank.params["batch"], size.edge, size.classes)
    on_host = inputs.pin_memory() if device == "cuda" else inputs
    targets = targets.to(rank.device)
    model = parallel(rank, net)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    losses = []
    for _ in rank.timed("step", warmup=size.warmup, iterations=size.iterations):
        with rank.phase("copy"):
            inputs = on_host.to(rank.device, non_blocking=True)
        with rank.phase("forward"), torch.autocast(device, dtype=row.dtype, enabled=row.dtype != torch.float32):
            outputs = model(inputs)
        with rank.phase("loss"):
            loss = row.loss(outputs, targets)
        with rank.phase("backward"):
            optimizer.zero_grad()
            loss.backward()
        average_gradients(rank, net)
        with rank.phase("optimizer"):
            optimizer.step()
        losses.append(loss.detach())
    rank.record("loss_curve", losses, better="curve")
    record_rate(rank, samples=rank.params["batch"])
    record_setup(
        rank,
        net,
        optimizer,
        data="random numbers",
        sample_shape=str(tuple(on_host.shape[1:])),
        batches_per_task=size.iterations,
        samples_per_task=size.iterations * rank.params["batch"],
    )
