"""What ``busy_neighbours.py`` runs beside other work: a script, a sweep, a training, and a body that it can spoil."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from pytest_distbench.read import stdout


def test_script(distbench):
    step = stdout(r"step ([\d.]+) ms", scale=1e-3, unit="s", better="lower", skip=5)
    loss = stdout(r"loss ([\d.]+)", better="curve", first=10)
    distbench.run("train.py", read={"step_time": step, "loss": loss})


def test_sweep(collective_sweep):
    collective_sweep("all_reduce", sizes=[4096, 65536, 1 << 20])


def train(rank):
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(rank.seed)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.randn(512, 64)
    target = data.sum(1, keepdim=True).sign()
    goal = rank.goal("accuracy", target=0.9, every=10, max_steps=200)
    for _ in goal.steps(samples_per_step=512 * rank.world_size):
        loss = (model(data) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        goal.check(lambda: float((model(data).sign() == target).float().mean()), loss=loss)


def test_training(distbench):
    distbench.run(train)


def compute(rank):
    """With SLOWER it takes so many times as long."""
    seconds = 0.004 * float(os.environ.get("SLOWER", "1"))
    for _ in rank.timed("python", warmup=3, iterations=60):
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass


def test_body(distbench):
    distbench.run(compute)


def wait(rank):
    """With HELPER each rank starts a process that computes for ever, and an iteration takes 1.75 times as long."""
    seconds = 0.02
    if os.environ.get("HELPER"):
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        seconds *= 1.75
    for _ in rank.timed("wait", warmup=3, iterations=30):
        time.sleep(seconds)


def test_helpers(distbench):
    distbench.run(wait)
