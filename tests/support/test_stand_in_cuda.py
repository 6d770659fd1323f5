"""The stand-in CUDA: made-up streams that keep real time, and a torch that takes them for a device.

The functions without ``test_`` run in ranks. What they use of the stand-in is imported there: here it would make
this process believe that it has CUDA.
"""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_distbench.worker.context import RankContext
from pytest_distbench.workloads.calls import warm_up
from pytest_distbench.workloads.collectives import OPERATIONS
from pytest_distbench.workloads.sweep import sweep
from support.launching import Launch

pytestmark = pytest.mark.spawn


def in_a_rank(on_cuda: Launch, body: object, *, world_size: int = 1) -> None:
    record = on_cuda(body.__name__, world_size=world_size)  # type: ignore[attr-defined]

    assert (record.outcome, record.reason) == ("passed", "")


def looks_like_a_machine_with_gpus(rank: RankContext) -> None:
    assert rank.device == torch.device("cuda", rank.local_rank) == torch.device("cuda:0")
    assert rank.device.type == "cuda"
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 8
    assert torch.cuda.get_device_properties(rank.device).L2_cache_size > 2**20
    assert torch.cuda.get_device_properties(rank.device).total_memory == torch.cuda.mem_get_info()[1]
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.cuda.set_device(8)
    with torch.cuda.device(3):
        assert torch.cuda.current_device() == 3
    assert torch.cuda.current_device() == rank.local_rank


def is_not_asked_without_need(rank: RankContext) -> None:
    assert not torch.cuda.is_initialized()


def keeps_tensors_on_the_cpu(rank: RankContext) -> None:
    model = nn.Linear(3, 2).to(rank.device)
    made = [
        torch.ones(3, device=rank.device),
        torch.tensor([1.0, 2.0, 3.0], device="cuda"),
        torch.zeros(3, device=0),
        torch.ones(3).to("cuda:1"),
        torch.ones(3).to(rank.device, non_blocking=True),
        torch.ones(3).cuda(),
        torch.ones(3, pin_memory=True).pin_memory(),
        model(torch.ones(3).cuda()),
    ]
    with torch.device("cuda"):
        made.append(torch.ones(3))

    assert {tensor.device.type for tensor in made} == {"cpu"}
    torch.manual_seed(rank.seed)
    assert torch.equal(model.cuda()(made[0]), model(made[0]))


def trains_with_ddp(rank: RankContext) -> None:
    torch.use_deterministic_algorithms(mode=True)
    model = DistributedDataParallel(nn.Conv2d(1, 2, 3).to(rank.device), device_ids=[rank.device])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(2, 1, 8, 8, device=rank.device)).square().mean().backward()
        optimizer.step()
    weights = [torch.empty_like(model.module.weight) for _ in range(2)]
    dist.all_gather(weights, model.module.weight.detach())
    dist.barrier(device_ids=[rank.local_rank])

    assert torch.equal(*weights)


def returns_from_a_launch_at_once_and_waits_where_cuda_does(rank: RankContext) -> None:
    from support import stand_in_cuda as cuda

    value = torch.ones(1, device=rank.device)
    waits = {
        "synchronize": torch.cuda.synchronize,
        "item": value.item,
        "float": lambda: float(value),
        "if": lambda: bool(value),
        "cpu": value.cpu,
        "to": lambda: value.to("cpu"),
        "stream": lambda: torch.cuda.current_stream().synchronize(),
    }
    for name, wait in waits.items():
        start = time.perf_counter()
        cuda.launch(0.05)
        enqueued = time.perf_counter() - start
        _ = value + 1
        assert not torch.cuda.current_stream().query(), name
        wait()
        assert enqueued < 0.05 <= time.perf_counter() - start, name


def tells_the_time_of_the_device(rank: RankContext) -> None:
    from support import stand_in_cuda as cuda

    begin, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    begin.record()
    cuda.launch(0.02)
    middle.record()
    cuda.launch(0.03)
    end.record()

    assert not begin.elapsed_time(end) < 50
    assert middle.elapsed_time(end) == pytest.approx(30)
    assert not end.query()
    end.synchronize()
    assert end.query()


def replays_a_graph_at_once(rank: RankContext) -> None:
    from support import stand_in_cuda as cuda

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            cuda.launch(1e-3)
        assert torch.cuda.is_current_stream_capturing()
        with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
            torch.cuda.synchronize()
    assert torch.cuda.current_stream().query()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(15_000_000)
    begin.record()
    graph.replay()
    graph.replay()
    end.record()

    assert begin.elapsed_time(end) == pytest.approx(20)


def fails_where_it_is_waited_for(rank: RankContext) -> None:
    from support import stand_in_cuda as cuda
    from support import streams

    cuda.launch(0.01, failure=RuntimeError("CUDA error: device-side assert triggered"))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="device-side assert"):
            torch.cuda.synchronize()
    streams.DEVICE.failures.clear()


def has_no_clocks_to_be_raised(rank: RankContext) -> None:
    from support import stand_in_cuda as cuda

    assert warm_up(rank, lambda: cuda.launch(1e-3)) == 1


def counts_memory(rank: RankContext) -> None:
    from support import stand_in_cuda as cuda

    cuda.allocate(2**20)
    cuda.allocate(-(2**19))
    assert (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()) == (2**19, 2**20)
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 2**19


def has_nccls_recorder(rank: RankContext) -> None:
    from pytest_distbench.worker.torch_internals import recordings
    from support import stand_in_cuda as cuda

    cuda.record_nccl('{"entries": []}')
    assert recordings(whole=True)["nccl"] == b'{"entries": []}'


@pytest.mark.parametrize(
    "body",
    [
        looks_like_a_machine_with_gpus,
        keeps_tensors_on_the_cpu,
        returns_from_a_launch_at_once_and_waits_where_cuda_does,
        tells_the_time_of_the_device,
        replays_a_graph_at_once,
        fails_where_it_is_waited_for,
        has_no_clocks_to_be_raised,
        counts_memory,
        has_nccls_recorder,
    ],
    ids=lambda body: body.__name__,
)
def test_the_stand_in(on_cuda: Launch, body: object) -> None:
    in_a_rank(on_cuda, body)


def sweeps_every_operation(rank: RankContext) -> None:
    for name, operation in OPERATIONS.items():
        with rank.point(operation=name):
            sweep(rank, operation)


def test_every_collective_takes_time_on_the_device(on_cuda: Launch) -> None:
    """One that did not would be a clock that reads 0, and no baseline."""
    params = {"collective": "", "dtype": "float32", "sizes": [1024], "iterations": 5, "warmup": 2, "cache": "rotate"}

    record = on_cuda("sweeps_every_operation", backend="nccl", params=params)

    assert (record.outcome, record.reason) == ("passed", "")
    times = {m.at["operation"]: m.value for m in record.measurements if m.name == "latency"}
    assert times.keys() == OPERATIONS.keys()
    assert all(value is not None and value >= 10e-6 for value in times.values()), times


def test_a_rank_of_the_cpu_does_not_touch_it(on_cuda: Launch) -> None:
    record = on_cuda("is_not_asked_without_need", world_size=1, device="cpu")

    assert (record.outcome, record.reason) == ("passed", "")


def test_ddp_trains_on_two_devices(on_cuda: Launch) -> None:
    in_a_rank(on_cuda, trains_with_ddp, world_size=2)


def joined_in_order(rank: RankContext) -> None:
    from support import stand_in_cuda as cuda

    assert cuda.calls[:2] == [f"set_device {rank.local_rank}", "init_process_group gloo"]


def test_a_rank_sets_its_device_before_it_joins(on_cuda: Launch) -> None:
    in_a_rank(on_cuda, joined_in_order, world_size=2)
