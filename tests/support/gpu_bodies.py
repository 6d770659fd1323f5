"""Bodies for a GPU, real or simulated: they do not know which, and two ranks may share the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_distbench.workloads.calls import warm_up
from pytest_distbench.workloads.sweep import collective_sweep
from pytest_distbench.workloads.training import make_deterministic

if TYPE_CHECKING:
    from pytest_distbench import RankContext

__all__ = ["collective_sweep", "times_kernels", "trains"]

CYCLES = 500_000
"""Cycles of the shorter kernel: about a third of a millisecond."""
TIMES = 4
"""How many times as long the longer kernel is."""
STEPS = 6


def times_kernels(rank: RankContext) -> None:
    """Time a kernel, and one that is four times as long, in each mode of a loop."""
    warm_up(rank, lambda: torch.cuda._sleep(CYCLES))
    for mode in ("per-iteration", "batch", "graph"):
        for name, cycles in (("short", CYCLES), ("long", TIMES * CYCLES)):
            for _ in rank.timed(name, warmup=2, iterations=10, at={"clock": mode}, mode=mode):
                torch.cuda._sleep(cycles)


def trains(rank: RankContext) -> None:
    """A few steps of DDP, the same in every digit whenever they are run."""
    make_deterministic(rank.seed)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(rank.device)
    model = DistributedDataParallel(net, device_ids=[rank.device])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(rank.rank)).to(rank.device)
    goal = rank.goal("steps_done", target=STEPS, every=STEPS, max_steps=STEPS)
    for step in goal.steps(samples_per_step=32 * rank.world_size):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        goal.check(lambda step=step: step, loss=loss)  # type: ignore[misc]
