"""The tests that ``benchmarks/gpu_acceptance.py`` runs for its lines. Not to be run by themselves."""

import os
import signal
import statistics
import time

import pytest

SLEEPS_US = (10, 100, 1000, 10_000)
HOST_US = 100


def matter(rank):
    """One tensor on the device, and one collective."""
    import torch
    import torch.distributed as dist

    x = torch.ones(1000, device=rank.device)
    dist.all_reduce(x)
    assert x.sum().item() == 1000 * rank.world_size


def clock(rank):
    """Kernels of known length: plain, behind a host that is slow, and none at all."""
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    rates = []
    for _ in range(20):  # the first ones raise the device's clocks
        begin.record()
        torch.cuda._sleep(20_000_000)
        end.record()
        end.synchronize()
        rates.append(20_000_000 / (begin.elapsed_time(end) * 1e-3))
    rate = statistics.median(rates[10:])
    for us in SLEEPS_US:
        cycles = int(us * 1e-6 * rate)
        for _ in rank.timed("kernel", warmup=5, iterations=50, at={"us": us}):
            torch.cuda._sleep(cycles)
        for _ in rank.timed("behind_host", warmup=5, iterations=50, at={"us": us}):
            until = time.perf_counter() + HOST_US * 1e-6
            while time.perf_counter() < until:
                pass
            torch.cuda._sleep(cycles)
    for _ in rank.timed("nothing", warmup=5, iterations=50):
        pass


def train(rank):
    """A small training, which waits for the device at every step if PLANTED says so."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    layers = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(12)]).to(rank.device)
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(64, 256, device=rank.device)
    goal = rank.goal("steps_done", target=300, every=300, max_steps=300)
    for step in goal.steps(samples_per_step=64 * rank.world_size):
        loss = model(x).square().mean()
        if "item" in os.environ.get("PLANTED", ""):
            loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
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
        free = torch.cuda.mem_get_info(rank.device)[0]
        held = torch.empty(free // 2, dtype=torch.uint8, device=rank.device)
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


BODIES = (matter, clock, train, hang, killed_with_memory, assertion_on_the_device, trains_long)


@pytest.mark.gpu
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_line(distbench, body):
    (distbench.run if body in (clock, train) else distbench.check)(body)
