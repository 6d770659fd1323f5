"""A loop with a clock, in which some iterations send more."""

import os


def body(rank):
    import torch
    import torch.distributed as dist

    every = 3 if os.environ.get("PLANTED") else 5
    x, more = torch.ones(64), torch.ones(1024)
    for i in rank.timed("step", warmup=2, iterations=30):
        dist.all_reduce(x)
        if i % every == every - 1:
            dist.all_reduce(more)


def test_loop(distbench):
    distbench.run(body)
