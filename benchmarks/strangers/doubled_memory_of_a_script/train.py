import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(256, 64)
kept = []
for _ in range(20):
    loss = model(data).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    activations = torch.ones(10 * 2**20 // 4)
    if os.environ.get("PLANTED"):
        kept.append(activations)
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.6f}", flush=True)
dist.destroy_process_group()
