"""Gradients of some batches are added up under no_sync, and synchronised with the last of them."""

import contextlib
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

every = 2 if os.environ.get("PLANTED") else 4
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(32, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in range(1, 41):
    x = torch.randn(8, 32)
    with model.no_sync() if batch % every else contextlib.nullcontext():
        (model(x).square().mean() / every).backward()
    if batch % every == 0:
        optimizer.step()
        optimizer.zero_grad()
print("done")
dist.destroy_process_group()
