"""What ``confirmation.py`` slows: a body, a sweep, a training, a script, and a training on more than one worker."""

from __future__ import annotations

import time

from slower import SHARE, WAITS, work_more

from pytest_distbench.read import stdout


def steps(rank):
    import torch
    import torch.distributed as dist

    torch.manual_seed(0)
    a, gradients = torch.randn(192, 192), torch.zeros(1 << 16)
    for _ in rank.timed("step", warmup=5, iterations=200):
        start = time.perf_counter()
        for _ in range(8):
            a = (a @ a).tanh()
        dist.all_reduce(gradients)
        work_more(start)


def test_body(distbench):
    distbench.run(steps)


def test_sweep(collective_sweep):
    collective_sweep("operations.py::ALL_REDUCE", sizes=[4096 << 2 * i for i in range(6)])


def train(rank):
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(rank.seed)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.randn(512, 64)
    target = data.sum(1, keepdim=True).sign()
    goal = rank.goal("accuracy", target=0.9, every=10, min_steps=200, max_steps=400)
    for _ in goal.steps(samples_per_step=512 * rank.world_size):
        start = time.perf_counter()
        loss = (model(data) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        work_more(start)
        goal.check(lambda: float((model(data).sign() == target).float().mean()), loss=loss)


def test_training(distbench):
    distbench.run(train)


STEP_S, PIECES = 0.02, 100


def small(rank):
    """A training step of about STEP_S seconds. More work is more pieces, not a longer time: load does not change it."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(rank.seed)
    model = DistributedDataParallel(torch.nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data, weight = torch.randn(128, 256), torch.randn(256, 256) / 16
    for _ in rank.timed("step", warmup=5, iterations=50):
        x = data
        for _ in range(round(PIECES * (1 + SHARE))):
            x = (x @ weight).tanh()
        time.sleep(STEP_S * WAITS)
        loss = model(data).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_small(distbench):
    distbench.run(small)


def scaled(rank):
    import torch
    from torch import nn

    from pytest_distbench.workloads.gradients import parallel
    from pytest_distbench.workloads.rates import record_rate

    torch.manual_seed(rank.seed)
    layers = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.ReLU())]
    model = parallel(rank, nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.randn(rank.params["batch"], 256)
    for _ in rank.timed("step", warmup=5, iterations=100):
        start = time.perf_counter()
        loss = model(data).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank.world_size > 1 and rank.params["communication"] == "on":
            work_more(start)
    record_rate(rank, samples=rank.params["batch"])


def test_efficiency(scaling):
    scaling(scaled, mode="weak", params={"batch": 512})


def test_script(distbench):
    step = stdout(r"step ([\d.]+) ms", scale=1e-3, unit="s", better="lower", skip=5)
    loss = stdout(r"loss ([\d.]+)", better="curve", first=10)
    distbench.run("train.py", read={"step_time": step, "loss": loss})
