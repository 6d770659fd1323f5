"""A small training that runs as a script, in settings that real ones have, with changes that its log may not show.

The first argument is the setting; the environment variable LEFT_CHANGE names a healthy change or a fault.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SETTINGS = (
    *("plain", "local SGD", "GAN on one rank", "experts", "adapter of one rank", "stochastic rounding"),
    *("an expert's rate per rank", "autocast", "gradients in bfloat16", "printed every 8th step", "names with times"),
    *("keep the last 3", "best by validation", "random states"),
)

HEALTHY = (
    *("loop instead of foreach", "fused optimizer", "another order of the sum", "more files"),
    "gradients to bfloat16 and back",
)

FAULTS = {
    "weights negated at the end": "weights",
    "a tensor permuted at the end": "weights",
    "two layers exchanged at the end": "weights",
    "weights 1 % larger at the end": "weights",
    "running mean of batch norm dropped": "weights",
    "average of weights drifts away": "saved",
    "a saved tensor is scaled": "saved",
    "a layer is not saved": "saved",
    "a file is not saved": "saved",
    "saved before the last step": "saved",
    "rank 1 changes a row at step 5": "replicas",
    "rank 1 skips weight decay of a layer": "replicas",
    "a layer trained behind DDP's back": "replicas",
    "hand-averaged adapter differs late": "weights",
    "second epoch repeats the first": "loss_curve",
    "weights reset at step 12": "loss_curve",
    "gradient of one layer doubled at step 15": "loss_curve",
    "weight decay lost": "options",
    "momentum changed from step 20 on": "loss_curve",
    "schedule twice as long": "options",
    "objects of 100 KiB": "fingerprint",
    "reductions behind the backward pass": "fingerprint",
    "a barrier in each step": "fingerprint",
}
"""And the metric, or ``options``, that is expected to say so."""

STEPS, EPOCH = 24, 12


def main(setting: str, change: str) -> None:
    """Train, print losses, save."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net: Any = nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)
    )
    adapter: Any = nn.Linear(16, 1, bias=False)
    late: Any = nn.Linear(16, 1, bias=False)
    torch.manual_seed(rank)
    own = nn.Linear(16, 1, bias=False)  # an expert, or a discriminator
    if change == "a layer trained behind DDP's back":
        net[5].requires_grad_(requires_grad=False)
    if setting == "stochastic rounding":
        net.bfloat16()
    model = DistributedDataParallel(net)
    net.requires_grad_()
    if change == "gradients to bfloat16 and back" or setting == "gradients in bfloat16":
        for p in net.parameters():
            p.register_hook(lambda g: g.bfloat16().to(g.dtype))
    parameters = [*net.parameters(), *adapter.parameters(), *late.parameters()]
    owners = {
        "experts": (0, 1),
        "an expert's rate per rank": (0, 1),
        "GAN on one rank": (1,),
        "adapter of one rank": (1,),
    }
    groups: list[dict[str, Any]] = [{"params": parameters[:4]}, {"params": parameters[4:]}]
    if rank in owners.get(setting, ()):
        factor = 1 + rank if "rate" in setting else 1
        groups.append({"params": own.parameters(), "lr": 1e-2 * factor})
    decay = 0.0 if change == "weight decay lost" else 1e-2
    how: dict[str, Any] = (
        {"foreach": False}
        if change == "loop instead of foreach"
        else {"fused": True}
        if change == "fused optimizer"
        else {}
    )
    if change == "rank 1 skips weight decay of a layer" and rank == 1:
        groups[1] = {"params": parameters[4:], "weight_decay": 0.0}
    optimizer = torch.optim.AdamW(groups, lr=1e-2, weight_decay=decay, **how)
    length = STEPS * (4 if change == "schedule twice as long" else 2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, length)
    average = {name: p.detach().clone() for name, p in net.named_parameters()}
    best = float("inf")
    for step in range(STEPS):
        batch = step % EPOCH if change == "second epoch repeats the first" else step
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(2 * batch + rank))
        if setting == "stochastic rounding":
            x = x.bfloat16()
        is_local = setting == "local SGD" and step % 4 != 3
        with (
            model.no_sync() if is_local else contextlib.nullcontext(),
            torch.autocast("cpu", enabled=setting == "autocast"),
        ):
            behind = change == "reductions behind the backward pass"
            y = (net if behind else model)(x)
            each = (y.float() - x.float().sum(1, keepdim=True)).square().flatten()
            loss = each.flip(0).cumsum(0)[-1] / 16 if change == "another order of the sum" else each.mean()
            hidden = net[:3](x).detach().float()
            extra = (adapter(hidden) + late(hidden) + own(hidden)).square().mean()
        optimizer.zero_grad()
        (loss + extra).backward()
        if behind:
            for p in net.parameters():
                dist.all_reduce(p.grad)
                p.grad /= world
        for p in (adapter.weight, late.weight):
            dist.all_reduce(p.grad)
            p.grad /= world
        if change == "gradient of one layer doubled at step 15" and step == 15:
            net[3].weight.grad *= 2
        if change == "momentum changed from step 20 on" and step == 20:
            optimizer.param_groups[0]["betas"] = (0.5, 0.999)
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            if setting == "stochastic rounding":
                noise = torch.Generator().manual_seed(1000 * step + rank)
                for p in net.parameters():
                    p.add_(p * 2**-9 * (torch.rand(p.shape, generator=noise) - 0.5).bfloat16())
            if setting == "local SGD" and step % 4 == 3:
                for p in net.parameters():
                    dist.all_reduce(p)
                    p /= world
            if change == "rank 1 changes a row at step 5" and rank == 1 and step == 5:
                net[0].weight[0] += 0.1
            if change == "hand-averaged adapter differs late" and rank == 1 and step == 21:
                adapter.weight *= 1.001
            if change == "weights reset at step 12" and step == 12:
                net[3].weight.zero_()
            sign = -0.1 if change == "average of weights drifts away" else 0.1
            for name, p in net.named_parameters():
                average[name].lerp_(p, sign)
        if change == "objects of 100 KiB":
            dist.all_gather_object([None] * world, "x" * 100_000)
        else:
            dist.all_gather_object([None] * world, "x" * 10)
        if change == "a barrier in each step":
            dist.barrier()
        if rank == 0 and (setting != "printed every 8th step" or step % 8 == 7):
            print(f"step {step} loss {loss.item():.6f}", flush=True)
        if rank == 0:
            save_on_the_way(setting, step, loss.item(), best, net)
        best = min(best, loss.item())
        if change == "saved before the last step" and rank == 0 and step == STEPS - 2:
            kept = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with torch.no_grad():
        if change == "weights negated at the end":
            net[5].weight.neg_()
        if change == "a tensor permuted at the end":
            net[3].bias.copy_(net[3].bias.roll(1))
        if change == "two layers exchanged at the end":
            net[3].weight.copy_(net[3].weight.t().clone())
        if change == "weights 1 % larger at the end":
            net[3].weight.mul_(1.01)
        if change == "running mean of batch norm dropped":
            net[1].running_mean.zero_()
    if rank == 0:
        state = kept if change == "saved before the last step" else dict(net.state_dict())
        if change == "a saved tensor is scaled":
            state["3.weight"] = state["3.weight"] * 100
        if change == "a layer is not saved":
            del state["3.weight"]
        torch.save({"model": state, "step": STEPS}, "model.pt")
        if change != "a file is not saved":
            torch.save(average, "average.pt")
        if change == "more files":
            torch.save(optimizer.state_dict(), "optimizer.pt")
    dist.destroy_process_group()


def save_on_the_way(setting: str, step: int, loss: float, best: float, net: nn.Module) -> None:
    """As trainings do that go on for days."""
    if setting == "names with times":
        torch.save(net.state_dict(), f"{time.strftime('%Y%m%d-%H%M%S')}-{time.time():.0f}.pt")
    if setting == "keep the last 3":
        torch.save(net.state_dict(), f"step{step}.pt")
        with contextlib.suppress(FileNotFoundError):
            os.remove(f"step{step - 3}.pt")
    if setting == "best by validation" and loss < best:
        torch.save({"model": net.state_dict(), "loss": loss}, "best.pt")
    if setting == "random states" and step % 8 == 7:
        torch.save({"rng": torch.get_rng_state(), "python": random.getstate(), "time": time.time()}, "random.pt")


if __name__ == "__main__":
    main(sys.argv[1], os.environ.get("LEFT_CHANGE", ""))
