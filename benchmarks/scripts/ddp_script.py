"""A training script as people write it: its own group, DistributedDataParallel, no function around the model."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(20, 1))
for _ in range(100):
    model(torch.ones(8, 20)).sum().backward()
dist.destroy_process_group()
