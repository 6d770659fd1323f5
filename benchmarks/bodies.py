"""Bodies the benchmarks launch. Apart from the benchmarks, so that importing them costs a rank nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_distbench import ElasticRank, RankContext


def barrier(_rank: RankContext) -> None:
    """One barrier."""
    import torch.distributed as dist

    dist.barrier()


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


def sweep_beside_bare_loop(rank: RankContext) -> None:
    """Blocks of the sweep at one size, and of a bare loop, in turns, either first; each makes its memory anew."""
    import time

    import torch
    import torch.distributed as dist

    from pytest_distbench.workloads.collectives import operation
    from pytest_distbench.workloads.pool import Pool, least_bytes
    from pytest_distbench.workloads.sweep import LARGE_BYTES, sweep

    measured = operation("all_reduce")
    [size] = rank.params["sizes"]
    warmup, iterations = rank.params["warmup"] if size < LARGE_BYTES else 1, rank.params["iterations"]

    def swept(block: int) -> list[float]:
        with rank.point(block=block):
            sweep(rank, measured)
        [own] = [o for o in rank.notebook.observations if o.name == "latency" and o.at["block"] == block]
        return rank.max_over_ranks(own.values)

    def bare() -> list[float]:
        slot = Pool(
            measured,
            rank.device,
            torch.float32,
            rank=rank.rank,
            world_size=rank.world_size,
            largest=size // 4,
            least_bytes=least_bytes(rank),
            in_place=True,
        ).slots(size // 4)
        dist.all_reduce(slot(0).sent)
        seconds = []
        for x in [slot(k).sent for k in range(warmup + iterations)]:
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(x)
            seconds.append(time.perf_counter() - start)
        return rank.max_over_ranks(seconds[warmup:])

    swept(-1)
    for block in range(rank.params["blocks"]):
        second = bare() if block % 2 else None
        first = swept(block)
        at = {"message_bytes": size, "block": block}
        rank.record("swept", first, unit="s", at=at)
        rank.record("bare", second or bare(), unit="s", at=at)


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
