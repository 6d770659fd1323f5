import os
import random
import time


def body(rank):
    import torch
    import torch.distributed as dist

    x = torch.ones(1000)
    chance = random.Random(time.time_ns())
    pace = chance.uniform(0.001, 0.02)
    for _ in rank.timed("step", warmup=1, iterations=5):
        time.sleep(pace)
        for _ in range(2 if os.environ.get("PLANTED") else 1):
            dist.all_reduce(x)


def test_it(distbench):
    distbench.run(body)
