"""A training that evaluates every 30 ms, and ends where chance wants it."""

import random
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(32, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
box = [random.randint(20, 60), 0]
dist.broadcast_object_list(box)
due = time.monotonic() + 0.03
for _ in range(1, box[0] + 1):
    optimizer.zero_grad()
    model(torch.randn(8, 32)).square().mean().backward()
    optimizer.step()
    is_due = torch.tensor([float(dist.get_rank() == 0 and time.monotonic() > due)])
    dist.broadcast(is_due, src=0)
    if is_due:
        due = time.monotonic() + 0.03
        dist.all_reduce(torch.ones(1))
    time.sleep(0.002)
print("done")
dist.destroy_process_group()
