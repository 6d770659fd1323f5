"""A script, and the same as a loop with a clock around each batch."""

import contextlib
import os


def test_script(distbench):
    distbench.run("train.py")


def batches(rank):
    import torch
    from torch.nn.parallel import DistributedDataParallel

    every = 2 if os.environ.get("PLANTED") else 4
    model = DistributedDataParallel(torch.nn.Linear(32, 8))
    for i in rank.timed("batch", warmup=8, iterations=40):
        with contextlib.nullcontext() if i % every == 3 % every else model.no_sync():
            model(torch.ones(8, 32)).square().mean().backward()


def test_batches(distbench):
    distbench.run(batches)
