"""Bodies the benchmarks launch. Apart from the benchmarks, so that importing them costs a rank nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_distbench import RankContext


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


def clocks(rank: RankContext) -> None:
    """The points of :func:`points`, with wall time, CPU time and context switches of every iteration."""
    import resource
    import time

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    def reduce() -> None:
        dist.all_reduce(x)

    def step() -> None:
        loss = model(data).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.randn(64, 512)
    for name, size, iterations in (("4 KiB", 4096, 120), ("1 MiB", 2**20, 80), ("16 MiB", 2**24, 20), ("step", 4, 40)):
        x = torch.zeros(size // 4)
        work = step if name == "step" else reduce
        rows = []
        for _ in range(iterations + 3):
            rank.barrier()
            usage, cpu, wall = resource.getrusage(resource.RUSAGE_SELF), time.process_time(), time.perf_counter()
            work()
            wall, cpu, after = (
                time.perf_counter() - wall,
                time.process_time() - cpu,
                resource.getrusage(resource.RUSAGE_SELF),
            )
            rows.append((wall, cpu, after.ru_nvcsw - usage.ru_nvcsw, after.ru_nivcsw - usage.ru_nivcsw))
        walls, cpus, waits, preemptions = (list(column) for column in zip(*rows[3:], strict=True))
        at = {"point": name}
        rank.record("wall_s", walls, unit="s", better="lower", reduce="max", at=at)
        rank.record("cpu_s", cpus, unit="s", better="lower", reduce="max", at=at)
        rank.record("cpu_s_all_ranks", cpus, unit="s", better="lower", reduce="sum", at=at)
        rank.record("waits", waits, better="lower", reduce="sum", at=at)
        rank.record("preemptions", preemptions, better="lower", reduce="sum", at=at)
        rank.record("peak_rss", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, unit="B", at=at)


def short_loops(rank: RankContext) -> None:
    """What a hasty test measures: twenty iterations of a small and of a middle all_reduce."""
    import torch
    import torch.distributed as dist

    for size in (4000, 2**20):
        x = torch.zeros(size // 4)
        for _ in rank.timed("all_reduce", warmup=2, iterations=20, at={"message_bytes": size}):
            dist.all_reduce(x)


def sweep_beside_bare_loop(rank: RankContext) -> None:
    """Blocks of the sweep at one size, and of a bare loop on the same buffers, in turns; either comes first."""
    import dataclasses
    import time

    import torch
    import torch.distributed as dist

    from pytest_distbench.workloads.collectives import Buffers, Form, operation
    from pytest_distbench.workloads.pool import least_bytes
    from pytest_distbench.workloads.sweep import sweep

    kept: list[tuple[Buffers, Form]] = []
    measured = operation(rank.params["collective"])
    scratch = torch.empty(max(rank.params["sizes"][0], least_bytes(rank)), dtype=torch.uint8)
    iterations = rank.params["iterations"]

    def keep(buffers: Buffers, form: Form) -> None:
        kept.append((buffers, form))
        measured.call(buffers, form)

    def swept(block: int) -> list[float]:
        kept.clear()
        with rank.point(block=block):
            sweep(rank, dataclasses.replace(measured, call=keep))
        [own] = [o for o in rank.notebook.observations if o.name == "latency" and o.at["block"] == block]
        del kept[: -iterations - (measured.expected is not None)]  # before: connecting, warm-up
        return rank.max_over_ranks(own.values)

    def bare() -> list[float]:
        scratch.fill_(0)  # as the sweep's own pool is filled before it begins: no buffer lies in a cache
        seconds = []
        for buffers, form in [*kept[: rank.params["warmup"]], *kept[:iterations]]:
            dist.barrier()
            start = time.perf_counter()
            measured.call(buffers, form)
            seconds.append(time.perf_counter() - start)
        return rank.max_over_ranks(seconds[-iterations:])

    size = rank.params["sizes"][0]
    swept(-1)
    for block in range(rank.params["blocks"]):
        second = bare() if block % 2 else None
        first = swept(block)
        at = {"message_bytes": size, "block": block}
        rank.record("swept", first, unit="s", at=at)
        rank.record("bare", second or bare(), unit="s", at=at)
