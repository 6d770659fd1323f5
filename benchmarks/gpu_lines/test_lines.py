"""The tests that ``benchmarks/gpu_acceptance.py`` runs for its lines. Not to be run by themselves."""

import os
import signal
import statistics
import time

import pytest

SLEEPS_US = (10, 100, 1000, 10_000)
HOST_US = 100
HICCUP_US, HICCUP_HOST_US, HICCUP_S = 50, 60, 2e-3
STEP_S, HOST_PART = 20e-3, 0.6
"""Of a training: what a step takes on the device, and the part of it in which the host makes the next batch."""


def matter(rank):
    """One tensor on the device, and one collective."""
    import torch
    import torch.distributed as dist

    x = torch.ones(1000, device=rank.device)
    dist.all_reduce(x)
    assert x.sum().item() == 1000 * rank.world_size


def spin(seconds):
    """The host computes for so long."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def cycles_per_s():
    """How fast the device counts in ``torch.cuda._sleep``."""
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    rates = []
    for _ in range(20):  # the first ones raise the device's clocks
        begin.record()
        torch.cuda._sleep(20_000_000)
        end.record()
        end.synchronize()
        rates.append(20_000_000 / (begin.elapsed_time(end) * 1e-3))
    return statistics.median(rates[10:])


def clock(rank):
    """Kernels of known length: plain, behind a host that is slow, and none at all."""
    import torch

    rate = cycles_per_s()
    for us in SLEEPS_US:
        cycles = int(us * 1e-6 * rate)
        for _ in rank.timed("kernel", warmup=5, iterations=50, at={"us": us}):
            torch.cuda._sleep(cycles)
        for _ in rank.timed("behind_host", warmup=5, iterations=50, at={"us": us}):
            spin(HOST_US * 1e-6)
            torch.cuda._sleep(cycles)
    for _ in rank.timed("nothing", warmup=5, iterations=50):
        pass


def hiccup(rank):
    """A kernel behind a host that takes longer to enqueue it, and is interrupted once while it warms up."""
    import torch

    cycles = int(HICCUP_US * 1e-6 * cycles_per_s())
    for interrupted in (False, True):
        for i in rank.timed("kernel", warmup=1, iterations=50, at={"interrupted": int(interrupted)}):
            spin(HICCUP_HOST_US * 1e-6)
            if interrupted and i == -1:
                spin(HICCUP_S)
            torch.cuda._sleep(cycles)


def train(rank):
    """A training that makes a batch on the host while the device computes; with PLANTED it waits for the device."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    layers = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(2)]).to(rank.device)
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(64, 64, device=rank.device)
    cycles = int(STEP_S * cycles_per_s())
    goal = rank.goal("steps_done", target=100, every=100, max_steps=100)
    for step in goal.steps(samples_per_step=64 * rank.world_size):
        spin(HOST_PART * STEP_S)
        loss = model(x).square().mean()
        torch.cuda._sleep(cycles)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "item" in os.environ.get("PLANTED", ""):
            loss.item()
        goal.check(lambda step=step: step, loss=loss)


def hang(rank):
    """Rank 1 never comes to the collective."""
    import torch
    import torch.distributed as dist

    x = torch.ones(10, device=rank.device)
    dist.all_reduce(x)
    if rank.rank == 1:
        time.sleep(1000)
    dist.all_reduce(x)
    x.sum().item()


def killed_with_memory(rank):
    """Rank 1 holds half of the free memory and is killed."""
    import torch
    import torch.distributed as dist

    if rank.rank == 1:
        num_bytes = int(os.environ.get("HELD_BYTES") or torch.cuda.mem_get_info(rank.device)[0] // 2)
        held = torch.empty(num_bytes, dtype=torch.uint8, device=rank.device)
        held.fill_(1)
        torch.cuda.synchronize()
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def assertion_on_the_device(rank):
    """The last statement enqueues a kernel that fails."""
    import torch

    x = torch.zeros(10, device=rank.device)
    x[torch.tensor([100], device=rank.device)] += 1


def trains_long(rank):
    """Until somebody ends it."""
    import torch
    import torch.distributed as dist

    x = torch.ones(10, device=rank.device)
    for _ in range(10_000):
        dist.all_reduce(x)
        time.sleep(0.05)
        rank.progress("training")


BODIES = (matter, clock, hiccup, train, hang, killed_with_memory, assertion_on_the_device, trains_long)


@pytest.mark.gpu
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_line(distbench, body):
    (distbench.run if body in (clock, hiccup, train) else distbench.check)(body)
