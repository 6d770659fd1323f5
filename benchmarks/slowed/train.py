"""A training script of some seconds."""

import time

import torch
import torch.distributed as dist
from slower import work_more
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
layers = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.ReLU())]
model = DistributedDataParallel(nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data, target = torch.randn(256, 256), torch.randn(256, 256)
for _ in range(240):
    start = time.perf_counter()
    loss = (model(data) - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    work_more(start)
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.6f} step {1e3 * (time.perf_counter() - start):.3f} ms", flush=True)
dist.destroy_process_group()
