"""Small seeded trainings, with a place for what changes their digits and for what makes another training of them.

Four recipes on the digits images, two ranks under DDP, 80 steps: ``mlp`` (SGD, momentum),
``warm-up`` (the same on one batch, a rate that rises over 1000 steps), ``adam`` (AdamW, a warm-up from 0, label
smoothing and clipping) and ``conv`` (convolutions and batch norm, SGD with Nesterov momentum and weight decay).
The environment variable RECIPE_VARIANT names the recipe and what is done to it: ``adam/LR x 3``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 the field's name for it
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_distbench.workloads.training import make_deterministic

sys.path.append(str(Path(__file__).parents[1] / "suites" / "training"))  # in a benchmark's process, and in its ranks
from digits import TRAINING_SAMPLES, shuffled_digits, split

if TYPE_CHECKING:
    from pytest_distbench import RankContext

VARIABLE = "RECIPE_VARIANT"
STEPS = 80
BATCH = 16
ON_OTHER_CPU = "other instructions"
RECIPES = ("mlp", "warm-up", "adam", "conv")

HEALTHY = (
    "as it was",
    "bucket size",
    "bucket views",
    "static graph",
    "two threads",
    "summed in another order",
    "optimizer in a loop",
    "fused optimizer",
    "channels_last",
    "compiled (aot_eager)",
    "gradients in bfloat16",
    ON_OTHER_CPU,
)
"""Other digits, or none, of the same training."""

FAULTS = (
    "LR x 3",
    "LR halved",
    "LR x 0.9",
    "second moment or momentum",
    "weight decay x 10",
    "clipped before it is averaged",
    "gradients summed",
    "not synchronised",
    "one layer not synchronised",
    "ranks read one shard",
    "schedule x world size",
    "eval mode from step 30",
    "updates stop at step 40",
)
"""Another training."""

_FACTORS = {"LR x 3": 3.0, "LR halved": 0.5, "LR x 0.9": 0.9}


def train(rank: RankContext) -> None:
    """Train, and record the losses, and what the model is worth at the end."""
    recipe, variant = os.environ[VARIABLE].split("/")
    make_deterministic(rank.seed)
    if variant == "two threads":
        torch.set_num_threads(2)
    images, labels = shuffled_digits()
    (x, y, test_x, test_y) = split(images.reshape(-1, 1, 8, 8) / 16, labels)
    is_conv = recipe == "conv"
    net = _conv() if is_conv else _mlp()
    if variant == "channels_last":
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = x.to(memory_format=torch.channels_last)
    if variant == "one layer not synchronised":
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(  # type: ignore[no-untyped-call]
            net, [name for name, _ in net.named_parameters() if name.startswith(("1.", "0."))]
        )
    is_alone = variant in ("clipped before it is averaged", "not synchronised")
    model = DistributedDataParallel(
        net,
        bucket_cap_mb=0.005 if variant == "bucket size" else 25,
        gradient_as_bucket_view=variant == "bucket views",
        static_graph=variant == "static graph",
    )
    if variant == "gradients in bfloat16":
        model.register_comm_hook(None, _bf16)
    if variant == "gradients summed":
        model.register_comm_hook(None, _sum)
    called: Any = torch.compile(model, backend="aot_eager") if variant.startswith("compiled") else model
    optimizer = _optimizer(recipe, variant, net)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, _rate(recipe, rank.world_size if variant == "schedule x world size" else 1)
    )
    losses = []
    per_epoch = TRAINING_SAMPLES // (BATCH * rank.world_size)
    for step in range(STEPS):
        epoch, i = divmod(0 if recipe == "warm-up" else step, per_epoch)
        order = torch.randperm(TRAINING_SAMPLES, generator=torch.Generator().manual_seed(1000 * rank.seed + epoch))
        shard = 0 if variant == "ranks read one shard" else rank.rank
        chosen = order[shard :: rank.world_size][i * BATCH : (i + 1) * BATCH]
        if variant == "eval mode from step 30" and step == 30:
            net.eval()
        smoothing = 0.1 if recipe == "adam" else 0.0
        model.require_backward_grad_sync = not is_alone
        each = F.cross_entropy(called(x[chosen]), y[chosen], label_smoothing=smoothing, reduction="none")
        loss = each.flip(0).cumsum(0)[-1] / BATCH if variant == "summed in another order" else each.mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if recipe == "adam" or variant == "clipped before it is averaged":
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        if variant == "clipped before it is averaged":
            for p in net.parameters():
                dist.all_reduce(p.grad.div_(rank.world_size))  # type: ignore[union-attr]
        if not (variant == "updates stop at step 40" and step >= 40):
            optimizer.step()
        schedule.step()
        losses.append(loss.detach())
    series = [float(loss) for loss in losses]
    net.eval()
    with torch.no_grad():
        scores = net(test_x)
    rank.record("loss_curve", series, better="curve")
    rank.record("final_loss", series[-1], better="same")
    rank.record("validation_loss", float(F.cross_entropy(scores, test_y)), better="same")
    accuracy = rank.sum_over_ranks(float((scores.argmax(1) == test_y).float().mean())) / rank.world_size
    rank.record("accuracy", accuracy, better="floor")


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.Dropout(0.1), nn.ReLU(), nn.Linear(96, 10))


def _conv() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU()),
        *(nn.Conv2d(12, 24, 3, padding=1, stride=2), nn.BatchNorm2d(24), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(96, 10)),
    )


def _rate(recipe: str, speed: int) -> Any:
    def factor(step: int) -> float:
        done = step * speed
        if recipe == "warm-up":
            return min(1.0, (done + 1) / 1000)
        if recipe == "adam":
            return min(1.0, done / 60)
        return max(0.0, 1 - done / (1.5 * STEPS))

    return factor


def _optimizer(recipe: str, variant: str, net: nn.Module) -> torch.optim.Optimizer:
    more: dict[str, Any] = {}
    if variant == "optimizer in a loop":
        more["foreach"] = False
    if variant == "fused optimizer":
        more["fused"] = True
    factor = _FACTORS.get(variant, 1.0)
    decay = 10.0 if variant == "weight decay x 10" else 1.0
    other = variant == "second moment or momentum"
    if recipe == "adam":
        betas = (0.9, 0.999 if other else 0.98)
        return torch.optim.AdamW(net.parameters(), lr=3e-3 * factor, betas=betas, weight_decay=0.1 * decay, **more)
    return torch.optim.SGD(
        net.parameters(),
        lr={"mlp": 0.1, "warm-up": 1e-2, "conv": 0.05}[recipe] * factor,
        momentum=0.3 if other else 0.9,
        nesterov=recipe == "conv",
        weight_decay=(1e-3 if recipe == "conv" else 1e-4) * decay,
        **more,
    )


# Hooks of DDP, which looks at annotations and takes no postponed ones.


def _sum(_state, bucket):  # type: ignore[no-untyped-def]
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])


def _bf16(_state, bucket):  # type: ignore[no-untyped-def] # as torch's bf16_compress_hook, which wants a GPU
    gradients = bucket.buffer().to(torch.bfloat16).div_(dist.get_world_size())
    done = dist.all_reduce(gradients, async_op=True).get_future()
    return done.then(lambda done: bucket.buffer().copy_(done.value()[0]))
