import os
import time


def body(rank):
    import torch.distributed as dist

    for _ in rank.timed("step", warmup=1, iterations=5):
        told = [{"host": "x" * (time.time_ns() % 90)}]
        for _ in range(2 if os.environ.get("PLANTED") else 1):
            dist.broadcast_object_list(told, src=0)
        dist.all_gather_object([None] * rank.world_size, told)


def test_it(distbench):
    distbench.run(body, tolerance=5)
