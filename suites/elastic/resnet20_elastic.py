"""ResNet-20 on the digits images by nodes that come and go, as report 000 trained ResNet-50 on 4 and 8 of them.

Network of ``suites/training/resnet20.py``, for one colour; 64 images per node and step, so that an epoch has fewer
steps on more nodes. What survives a change of membership: weights, momentum, schedule of the epochs, and the place in
the epoch. Learning rate: 0.05 per node behind a warm-up by epochs (Goyal et al., arXiv 1706.02677).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 the field's name for it
from digits import normalised, shared
from resnet20 import ResNet20
from torch.nn.parallel import DistributedDataParallel

from pytest_distbench.workloads.training import accuracy_over_ranks, make_deterministic

if TYPE_CHECKING:
    from pytest_distbench import ElasticRank

BATCH = 64
LR_PER_NODE = 0.05
WARMUP_EPOCHS = 2
"""The report: 5 of 20."""


def train(rank: ElasticRank) -> None:
    """Train ``rank.params["epochs"]`` epochs, over all generations together."""
    make_deterministic(rank.seed)
    images, labels, test_images, test_labels = normalised(rank.device)
    rank.record("test_images_trained_on", shared(images, test_images), better="info", at_most=0)
    net = ResNet20(colours=1).to(rank.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR_PER_NODE, momentum=0.9, nesterov=True, weight_decay=1e-4)
    training = rank.training(model=net, optimizer=optimizer)
    model = net if rank.world_size == 1 else DistributedDataParallel(net)
    for chosen in training.batches(samples=len(images), batch=BATCH, epochs=rank.params["epochs"]):
        for group in optimizer.param_groups:
            group["lr"] = LR_PER_NODE * rank.world_size * min(1.0, (training.epoch + 1) / (WARMUP_EPOCHS + 1))
        scores = model(images[chosen])
        loss = F.cross_entropy(scores, labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        is_among = scores.topk(5).indices == labels[chosen].unsqueeze(1)
        training.note(loss=loss, accuracy=is_among[:, 0].float().mean(), top5=is_among.any(1).float().mean())
    # How far it came depends on when nodes came and went, so no digit of it repeats: it has a floor, not a baseline.
    accuracy = accuracy_over_ranks(rank, net, test_images, test_labels)
    rank.record("accuracy", accuracy, at_least=0.9)
    with torch.no_grad():
        best = net.eval()(test_images).topk(5).indices
    rank.record("top5", float((best == test_labels.unsqueeze(1)).any(1).float().mean()))
