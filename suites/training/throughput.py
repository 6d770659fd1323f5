"""A transformer in bfloat16 under DDP or FSDP2: tokens per second, MFU, and memory. Nothing is to be learnt.

Model: ``pytest_distbench/workloads/models.py``; on GPUs 12 blocks of width 768 with 12 heads, sequences of
1024, a vocabulary of 16 384: 110 million parameters, as GPT-2's smallest; on CPUs its small one, 0.8 million. Recipe:
AdamW, parameters in float32 and arithmetic in bfloat16, by autocast under DDP and by FSDP2's policy, which sums
gradients in float32; 8 sequences of random tokens per GPU and step, always the same, so that nothing in a step waits
for the host. What it computes is judged by its losses.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 the field's name for it
from torch import nn
from transformer import with_ddp

from pytest_distbench.errors import RecordingError
from pytest_distbench.workloads.memory import record_peak_memory, reset_peak_memory
from pytest_distbench.workloads.models import LARGE, SMALL, Transformer
from pytest_distbench.workloads.rates import peak_flops, record_throughput, transformer_flops_per_token
from pytest_distbench.workloads.training import record_setup

if TYPE_CHECKING:
    from pytest_distbench import RankContext

SIZES = {"cuda": LARGE, "cpu": SMALL}
STEPS = 20


def with_fsdp(rank: RankContext, net: Transformer, device: str) -> nn.Module:
    """Every rank has a part of each tensor; blocks are gathered in bfloat16 when they are needed."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(device, (rank.world_size,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in net.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(net, mesh=mesh, mp_policy=policy)
    return net


def train(rank: RankContext) -> None:
    """Take steps, spread as ``rank.params["way"]`` says: each by itself, and then in one breath."""
    torch.manual_seed(rank.seed)
    device = torch.empty(0, device=rank.device).device.type  # where it computes: a stand-in for a GPU says the CPU
    size = SIZES[device]
    net = Transformer(size).to(rank.device)
    parameters = sum(p.numel() for p in net.parameters())
    is_ddp = rank.params["way"] == "ddp"
    model = with_ddp(rank, net) if is_ddp else with_fsdp(rank, net, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch.manual_seed(rank.seed + rank.rank)  # each rank has text of its own
    text = torch.randint(0, size.tokens, (size.batch, size.length + 1)).to(rank.device)

    losses: list[torch.Tensor] = []

    def step() -> None:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=is_ddp):
            scores = model(text[:, :-1])
        loss = F.cross_entropy(scores.float().flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())

    reset_peak_memory(rank)
    for _ in rank.timed("step", warmup=5, iterations=STEPS):
        step()
    rank.record("loss_curve", losses, better="curve")
    rank.barrier()
    rank.synchronize()
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    rank.synchronize()
    seconds = time.perf_counter() - start

    peak = known_peak(rank)
    inner = parameters - net.embedding.weight.numel()
    flops = transformer_flops_per_token(inner, layers=size.blocks, width=size.width, sequence=size.length)
    record_throughput(
        rank,
        tokens=STEPS * size.batch * size.length * rank.world_size,
        seconds=seconds,
        flops_per_token=flops if peak else None,
        peak=peak,
    )
    record_peak_memory(rank)
    record_setup(rank, net, optimizer, **vars(size))


def known_peak(rank: RankContext) -> float | None:
    """FLOP/s of a GPU whose data sheet is known; of another one tokens per second are judged alone."""
    try:
        return peak_flops(torch.cuda.get_device_name(rank.device)) if rank.device.type == "cuda" else None
    except RecordingError:
        return None
