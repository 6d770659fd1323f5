"""A training in three layouts, with one of many changes: the environment variable ``CHANGE`` names it.

``PLANTED`` cost something at 1,024 ranks; ``HEALTHY`` are refactorings that cost nothing.
"""

from __future__ import annotations

import contextlib
import os
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 the field's name for it
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

TOKENS, WIDTH, LENGTH, BATCH, BLOCKS = 256, 128, 32, 4, 4
CHANGE = os.environ.get("CHANGE", "")

PLANTED = {
    "small buckets": "ddp",
    "gradients reduced twice": "ddp",
    "loss reduced in every step": "ddp",
    "one bucket for each parameter": "ddp",
    "not sharded again": "fsdp",
    "an extra gather in each block": "fsdp",
    "reduced in float32": "fsdp",
    "checkpointing lost": "fsdp",
    "root alone is sharded": "fsdp",
    "optimizer state doubled": "fsdp",
    "a micro-batch fewer": "fsdp",
    "over the wrong mesh axis": "tp",
}
"""By the layout that has it."""

HEALTHY = {
    "another optimizer loop": "ddp",
    "gradients as views": "ddp",
    "loss by its definition": "ddp",
    "fields in another order": "ddp",
    "gradients zeroed at the end": "ddp",
    "data made on another generator": "ddp",
    "modules renamed": "fsdp",
    "sharded from the last block": "fsdp",
    "mesh by another name": "fsdp",
    "a hook that counts": "fsdp",
    "profiled regions": "fsdp",
    "plan as a loop": "tp",
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        names = ["norm", "up", "down"]
        for name in reversed(names) if CHANGE == "fields in another order" else names:
            made = {"norm": nn.LayerNorm(WIDTH), "up": nn.Linear(WIDTH, 4 * WIDTH), "down": nn.Linear(4 * WIDTH, WIDTH)}
            self.add_module(name, made[name])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if CHANGE == "an extra gather in each block":
            whole = torch.empty(dist.get_world_size() * x.numel(), dtype=x.dtype)
            dist.all_gather_into_tensor(whole, x.detach().reshape(-1).contiguous())
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, x: torch.Tensor, *, recomputes: bool = False) -> torch.Tensor:
        x = self.embedding(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if recomputes else block(x)
        return self.head(x)


def loss_of(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    scores, targets = scores.flatten(0, 1), targets.flatten()
    if CHANGE == "loss by its definition":
        return F.nll_loss(F.log_softmax(scores, -1), targets)
    return F.cross_entropy(scores, targets)


def with_ddp(net: Net, _size: int) -> nn.Module:
    cap = {"small buckets": 0.1, "one bucket for each parameter": 1e-6}.get(CHANGE, 25)
    return DistributedDataParallel(net, bucket_cap_mb=cap, gradient_as_bucket_view=CHANGE == "gradients as views")


def with_fsdp(net: Net, size: int) -> nn.Module:
    name = "ranks" if CHANGE == "mesh by another name" else "data"
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=(name,))
    dtype = torch.float32 if CHANGE == "reduced in float32" else torch.bfloat16
    shard = partial(fully_shard, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=dtype))
    if CHANGE == "modules renamed":
        net.layers = net._modules.pop("blocks")
        type(net).blocks = property(lambda self: self.layers)
    blocks = [] if CHANGE == "root alone is sharded" else list(net.blocks)
    for block in reversed(blocks) if CHANGE == "sharded from the last block" else blocks:
        shard(block, reshard_after_forward=CHANGE != "not sharded again")
    return shard(net)


def with_tp(net: Net, size: int) -> nn.Module:
    mesh = init_device_mesh("cpu", (size // 8, 8), mesh_dim_names=("data", "matrices"))
    own = mesh["data" if CHANGE == "over the wrong mesh axis" else "matrices"]
    plan = {
        f"blocks.{i}.{name}": style
        for i in range(BLOCKS)
        for name, style in (("up", ColwiseParallel()), ("down", RowwiseParallel()))
    }
    if CHANGE == "plan as a loop":
        for block in net.blocks:
            parallelize_module(block, own, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        return net
    return parallelize_module(net, own, plan)


LAYOUTS = {"ddp": with_ddp, "fsdp": with_fsdp, "tp": with_tp}


def train(rank) -> None:
    torch.manual_seed(rank.seed)
    layout = rank.params["layout"]
    recomputes = layout == "fsdp" and CHANGE != "checkpointing lost"
    model = LAYOUTS[layout](Net(), rank.world_size)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, amsgrad=CHANGE == "optimizer state doubled", foreach=layout == "ddp"
    )
    drawn = torch.Generator().manual_seed(3) if CHANGE == "data made on another generator" else None
    counted = []
    if CHANGE == "a hook that counts":
        model.register_forward_hook(lambda *_: counted.append(1))
    micro_batches = 1 if CHANGE == "a micro-batch fewer" else 2
    for _ in rank.timed("step", warmup=2, iterations=3):
        if CHANGE != "gradients zeroed at the end":
            optimizer.zero_grad()
        for _ in range(micro_batches):
            tokens = torch.randint(0, TOKENS, (BATCH, LENGTH + 1), generator=drawn)
            with (
                torch.profiler.record_function("forward") if CHANGE == "profiled regions" else contextlib.nullcontext()
            ):
                loss = loss_of(model(tokens[:, :-1], recomputes=recomputes), tokens[:, 1:])
            loss.backward()
            if CHANGE == "loss reduced in every step":
                dist.all_reduce(loss.detach())
        if CHANGE == "gradients reduced twice":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        if CHANGE == "another optimizer loop":
            for group in optimizer.param_groups:
                group["lr"] = 1e-3
        optimizer.step()
        if CHANGE == "gradients zeroed at the end":
            optimizer.zero_grad()
