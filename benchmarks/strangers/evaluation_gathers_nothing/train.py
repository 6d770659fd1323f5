"""Every fifth step the ranks gather what each has found in its part of a test set."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(32, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1, 23):
    loss = model(torch.randn(8, 32)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        with torch.no_grad():
            mine = model.module(torch.randn(64, 32)).argmax(1).eq(0).float().mean().reshape(1)
        parts = [mine.clone() for _ in range(dist.get_world_size())]
        if not os.environ.get("PLANTED"):
            dist.all_gather(parts, mine)
        print(f"step {step} accuracy {float(sum(parts)):.6f}")
dist.destroy_process_group()
