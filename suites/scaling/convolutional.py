"""A step of a model of the reports, with its parts as phases: what report 003 measured on 1, 2, 4 and 8 workers.

Models: ``pytest_distbench/workloads/models``. Recipe: SGD, momentum 0.9, the same batch of random numbers at every step
(synthetic input: tf_cnn_benchmarks without a data set), so that nothing is read. Of ``rank.params``: model, batch (of
this rank), edge (of an image, in pixels), classes, iterations, warmup; communication and compression are read by
``parallel``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pytest_distbench.workloads.models import count, model_named
from pytest_distbench.workloads.scaling import parallel, record_rate

if TYPE_CHECKING:
    from pytest_distbench import RankContext


def train(rank: RankContext) -> None:
    """Take steps."""
    params = rank.params
    row = model_named(params["model"])
    torch.manual_seed(rank.seed)
    batch = row.batch(params["batch"], params["edge"], params["classes"])
    inputs, targets = batch.inputs.to(rank.device), batch.targets.to(rank.device)
    net = row.make(params["classes"]).to(rank.device)
    size = count(net)
    model = parallel(rank, net)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    for _ in rank.timed("step", warmup=params["warmup"], iterations=params["iterations"]):
        with rank.phase("forward"):
            outputs = model(inputs)
        with rank.phase("loss"):
            loss = row.loss(outputs, targets)
        with rank.phase("backward"):
            optimizer.zero_grad()
            loss.backward()
        with rank.phase("optimizer"):
            optimizer.step()
    record_rate(rank, samples=params["batch"])
    rank.record("parameters", size.parameters, better="exact")
    rank.record("tensors", size.tensors, better="exact")
