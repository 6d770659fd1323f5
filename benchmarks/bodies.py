"""Bodies the benchmarks launch. Apart from the benchmarks, so that importing them costs a rank nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_distbench import ElasticRank, RankContext


def points(rank: RankContext) -> None:
    """all_reduce at three sizes and a training step, each long enough that more iterations would not steady it."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    for size, iterations in ((4096, 120), (2**20, 80), (2**24, 20)):
        x = torch.zeros(size // 4)
        for _ in rank.timed("all_reduce", warmup=5, iterations=iterations, at={"message_bytes": size}):
            dist.all_reduce(x)
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.randn(64, 512)
    for _ in rank.timed("ddp_step", warmup=3, iterations=40):
        loss = model(data).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def slowed_all_reduce(rank: RankContext) -> None:
    """all_reduce of 64 KiB, each iteration made ``factor`` times longer by waiting; every iteration is kept."""
    import time

    import torch
    import torch.distributed as dist

    x = torch.zeros(2**14)
    seconds = []
    for _ in rank.timed("latency", warmup=5, iterations=60):
        start = time.perf_counter()
        dist.all_reduce(x)
        until = start + (time.perf_counter() - start) * rank.params["factor"]
        while time.perf_counter() < until:
            pass
        seconds.append(time.perf_counter() - start)
    rank.record("iterations", seconds[-60:], unit="s", reduce="max")


def elastic_training(rank: ElasticRank) -> None:
    """A small real training, of steps that rest a little, until its plan lets it end."""
    import time

    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(rank.seed)
    inputs = torch.randn(397, 16)
    labels = (inputs @ torch.randn(16, 4)).argmax(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32),
        torch.nn.BatchNorm1d(32),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(32, 4),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2000)
    streams = rank.random_streams()
    training = rank.training(model=model, optimizer=optimizer, schedule=schedule, random=streams)
    parallel = DistributedDataParallel(model)
    for chosen in training.batches(samples=len(inputs), batch=8, epochs=10_000):
        loss = torch.nn.functional.cross_entropy(parallel(inputs[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call] # as torch has it
        optimizer.step()
        schedule.step()
        training.note(loss=loss)
        time.sleep(0.005)
