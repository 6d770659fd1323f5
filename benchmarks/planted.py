"""A small training with a place for every fault that people make when they distribute one.

Multilayer perceptron 64-48-10 on the digits images, SGD with momentum 0.9, batch 16 per rank, learning rate 0.05 per
rank, under DistributedDataParallel. The environment variable PLANTED_FAULT names the fault, PLANTED_STEPS how long to
train (132: three epochs on two ranks).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 the field's name for it
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_distbench.workloads.training import accuracy_over_ranks, make_deterministic

sys.path.append(str(Path(__file__).parents[1] / "suites" / "training"))  # in a benchmark's process, and in its ranks
from digits import TRAINING_SAMPLES, shuffled_digits, split

if TYPE_CHECKING:
    from pytest_distbench import RankContext

VARIABLE = "PLANTED_FAULT"
STEPS_VARIABLE = "PLANTED_STEPS"
BATCH = 16
LEARNING_RATES = {"LR not scaled by W": None, "LR halved": 0.5, "LR x 0.99": 0.99, "LR x 0.9": 0.9, "LR x 1.001": 1.001}
"""The factor to the right learning rate; None: one over the world size."""


def train(rank: RankContext) -> None:
    """Train, at most twice as long until the accuracy reaches 93 %."""
    fault = os.environ[VARIABLE]
    steps = int(os.environ.get(STEPS_VARIABLE, "132"))
    make_deterministic(rank.seed)
    if rank.rank > 0:
        torch.manual_seed(rank.seed + 1000 * rank.rank)  # DDP's broadcast makes ranks equal, not the seed
    images, labels, test_images, test_labels = digits()
    first = nn.Linear(64, 48)
    net = nn.Sequential(first, nn.ReLU(), nn.Linear(48, 10))
    if fault == "one layer not synced":
        alone = ["0.weight", "0.bias"]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, alone)  # type: ignore[no-untyped-call]
        dist.broadcast(first.weight.data, src=0)  # it starts equal: only its gradients stay apart
        dist.broadcast(first.bias.data, src=0)
    model = DistributedDataParallel(net, init_sync=fault != "no initial broadcast")
    if fault in HOOKS:
        model.register_comm_hook(None, HOOKS[fault])
    factor = LEARNING_RATES.get(fault, 1.0)
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=0.05 * rank.world_size * (1 / rank.world_size if factor is None else factor),
        momentum=0.0 if fault == "momentum missing" else 0.9,
    )
    goal = rank.goal(
        "accuracy", target=0.93, every=4, max_steps=2 * steps, min_steps=steps, evaluation_samples=len(test_labels)
    )
    epoch_steps = TRAINING_SAMPLES // (BATCH * rank.world_size)
    for step in goal.steps(samples_per_step=BATCH * rank.world_size):
        epoch, i = divmod(step - 1, epoch_steps)
        epoch = 0 if fault == "no set_epoch" else epoch
        order = torch.randperm(TRAINING_SAMPLES, generator=torch.Generator().manual_seed(1000 * rank.seed + epoch))
        shard = 0 if fault == "all ranks same shard" else rank.rank
        chosen = order[shard :: rank.world_size][i * BATCH : (i + 1) * BATCH]
        model.require_backward_grad_sync = fault != "no gradient sync"
        loss = F.cross_entropy(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        goal.check(lambda: accuracy_over_ranks(rank, net, test_images, test_labels), loss=loss)


def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training images (1437, 64) and labels, test images (360, 64) and labels."""
    images, labels = shuffled_digits()
    parts: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor] = split(images.flatten(1) / 16, labels)
    return parts


# Hooks of DDP, which looks at annotations and takes no postponed ones.


def _sum(_state, bucket):  # type: ignore[no-untyped-def]
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])


def _mean_without_last(_state, bucket):  # type: ignore[no-untyped-def]
    kept = 0.0 if dist.get_rank() == dist.get_world_size() - 1 else 1.0
    gradients = bucket.buffer().mul_(kept / dist.get_world_size())
    return dist.all_reduce(gradients, async_op=True).get_future().then(lambda done: done.value()[0])


def _bf16(_state, bucket):  # type: ignore[no-untyped-def] # as torch's bf16_compress_hook, which wants a GPU
    gradients = bucket.buffer().to(torch.bfloat16).div_(dist.get_world_size())
    done = dist.all_reduce(gradients, async_op=True).get_future()
    return done.then(lambda done: bucket.buffer().copy_(done.value()[0]))


HOOKS = {
    "gradients summed": _sum,
    "one rank's gradient dropped": _mean_without_last,
    "bf16 gradients": _bf16,
}

FAULTS = (
    "gradients summed",
    "no gradient sync",
    "one layer not synced",
    "LR not scaled by W",
    "LR halved",
    "LR x 0.9",
    "all ranks same shard",
    "no initial broadcast",
    "one rank's gradient dropped",
    "momentum missing",
)
"""Every one must be caught by the golden curve, in one launch."""

BEYOND = ("no set_epoch", "LR x 0.99", "LR x 1.001")
"""Not in the reach of a curve of ten steps: the first epoch is equal, or the deviation is below the tolerance."""

HARMLESS = ("healthy1", "healthy2", "bf16 gradients")
"""Must pass: the healthy training, and other rounding."""
