"""Code that destroys its group itself, in a function, with a model that outlives the group."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

KEPT: list[object] = []


def train(_rank: object = None) -> None:
    """Train in the default group and destroy it; one model goes with the function, one with the process."""
    for _ in range(2):
        model = DistributedDataParallel(torch.nn.Linear(20, 1))
        for _ in range(50):
            model(torch.ones(8, 20)).sum().backward()
        KEPT[:] = [model]
    dist.destroy_process_group()
    KEPT.clear()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
