"""Five small networks in three layouts, on real ranks or forecast: ``params`` has ``model`` and ``layout``."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 the field's name for it
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel


class Perceptron(nn.Module):
    """A chain of blocks, each two matrices."""

    def __init__(self, width: int, blocks: int, *, norm: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm": nn.LayerNorm(width) if norm else nn.Identity(),
                    "up": nn.Linear(width, 4 * width),
                    "down": nn.Linear(4 * width, width),
                }
            )
            for _ in range(blocks)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block["down"](F.gelu(block["up"](block["norm"](x))))
        return x


class Attention(Perceptron):
    """The same, with attention over the samples."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.unflatten(0, (-1, 16))
        x = x + F.scaled_dot_product_attention(x, x, x)
        return super().forward(x.flatten(0, 1))


class Convolutional(Perceptron):
    """The same, behind a convolution of each sample as an image."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__(width, blocks)
        self.convolution = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        images = x.reshape(len(x), 1, 16, -1)
        return super().forward(self.convolution(images).flatten(1))


MODELS = {
    "wide": (lambda: Perceptron(512, 2), 512, 64),
    "deep": (lambda: Perceptron(256, 8), 256, 64),
    "normed": (lambda: Perceptron(384, 4, norm=True), 384, 96),
    "attention": (lambda: Attention(256, 6), 256, 128),
    "convolutional": (lambda: Convolutional(256, 4), 256, 128),
}
"""A network, its width, and the samples of a rank."""


def train(rank) -> None:
    torch.manual_seed(rank.seed)
    make, width, samples = MODELS[rank.params["model"]]
    net = make()
    if rank.params["layout"] == "ddp":
        model = DistributedDataParallel(net)
    elif rank.params["layout"] == "fsdp":
        for block in net.blocks:
            fully_shard([block["up"], block["down"]])
        model = fully_shard(net)
    else:
        mesh = init_device_mesh("cpu", (rank.world_size,))
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        model = parallelize_module(
            net, mesh, {f"blocks.{i}.{n}": s for i in range(len(net.blocks)) for n, s in plan.items()}
        )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(samples, width)
    for _ in rank.timed("step", warmup=3, iterations=10):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
