"""ResNet-20 on the digits images, tested after every epoch, on as many nodes as there happen to be.

Network of ``suites/training/resnet20.py``, for one colour; 32 images per node and step. The learning rate is
report 002's, ``_schedule(epoch) * size``, in a fifth of its epochs and with 0.05 per node in place of 0.001. What
survives a change of membership besides weights and momentum: the accuracies of the epochs so far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 the field's name for it
from digits import normalised
from resnet20 import ResNet20
from torch.nn.parallel import DistributedDataParallel

from pytest_distbench.workloads.training import accuracy_over_ranks, make_deterministic

if TYPE_CHECKING:
    from pytest_distbench import ElasticRank

BATCH = 32
LR_PER_NODE = 0.05


def schedule(epoch: int) -> float:
    """The rate of one node: the report's steps, at 7, 8, 12 and 16 epochs in place of its 35, 40, 60 and 80."""
    factors = {16: 0.01, 12: 0.1, 8: 0.2, 7: 0.5}
    return LR_PER_NODE * next((factor for behind, factor in factors.items() if epoch > behind), 1.0)


class Curve:
    """Accuracies on the test images, one per epoch."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def state_dict(self) -> dict[str, list[float]]:
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        self.values = list(state["values"])


def train(rank: ElasticRank) -> None:
    """Train ``rank.params["epochs"]`` epochs, over all generations together."""
    make_deterministic(rank.seed)
    images, labels, test_images, test_labels = normalised(rank.device)
    net = ResNet20(colours=1).to(rank.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR_PER_NODE, momentum=0.9, nesterov=True, weight_decay=1e-4)
    curve = Curve()
    training = rank.training(model=net, optimizer=optimizer, curve=curve)
    model = net if rank.world_size == 1 else DistributedDataParallel(net)
    for chosen in training.batches(samples=len(images), batch=BATCH, epochs=rank.params["epochs"]):
        if training.epoch > len(curve.values):  # the first step after an epoch
            curve.values.append(accuracy_over_ranks(rank, net, test_images, test_labels))
        for group in optimizer.param_groups:
            group["lr"] = schedule(training.epoch) * rank.world_size
        loss = F.cross_entropy(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        training.note(loss=loss)
    curve.values.append(accuracy_over_ranks(rank, net, test_images, test_labels))
    for epoch, accuracy in enumerate(curve.values):
        rank.record("accuracy", accuracy, at={"epoch": epoch})
    rank.record("final_accuracy", curve.values[-1])
