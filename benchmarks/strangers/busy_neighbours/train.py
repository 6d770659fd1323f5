import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
)
data = torch.randn(256, 256)
for _ in range(60):
    start = time.perf_counter()
    model(data).square().mean().backward()
    if dist.get_rank() == 0:
        print(f"{1e3 * (time.perf_counter() - start):.3f} ms", flush=True)
dist.destroy_process_group()
