"""The observer: what the program asks for, whoever issues it, by torch's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from support.fake_world import fake_rank
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh

from pytest_distbench.records.fingerprint import Collective, Group
from pytest_distbench.worker.observer import Observer, groups_here

SIZE, ME = 4, 1


@pytest.fixture
def observer() -> Iterator[Observer]:
    with fake_rank(ME, world_size=SIZE) as rank:
        rank.watch.look_away()
        made = Observer(completes=True)
        made.look()
        yield made
        made.look_away()


def x(items: int = 3) -> torch.Tensor:
    return torch.ones(items)


def many(items: int = 3) -> list[torch.Tensor]:
    return [x(items) for _ in range(SIZE)]


def row(op: str, message_bytes: int = 12, how: str = "", dtype: str = "float32") -> Collective:
    return Collective(op, dtype, message_bytes, "default", 1, how)


CALLS: dict[str, tuple[Callable[[], object], Collective]] = {
    "all_reduce": (lambda: dist.all_reduce(x()), row("all_reduce", how="sum")),
    "max": (lambda: dist.all_reduce(x(), op=dist.ReduceOp.MAX), row("all_reduce", how="max")),
    "functional": (
        lambda: functional.all_reduce(x(), "avg", dist.group.WORLD).sum(),
        row("all_reduce", how="avg"),
    ),
    "inference": (torch.inference_mode()(lambda: dist.all_reduce(x())), row("all_reduce", how="sum")),
    "broadcast": (lambda: dist.broadcast(x(), src=2), row("broadcast", how="root 2")),
    "reduce": (lambda: dist.reduce(x(), dst=3, op=dist.ReduceOp.MIN), row("reduce", how="min root 3")),
    "all_gather": (lambda: dist.all_gather(many(), x()), row("all_gather")),
    "reduce_scatter": (lambda: dist.reduce_scatter(x(), many()), row("reduce_scatter", 48, "sum")),
    "gather": (lambda: dist.gather(x(), dst=0), row("gather", how="root 0")),
    "scatter": (lambda: dist.scatter(x(), many(), src=ME), row("scatter", 48, f"root {ME}")),
    "all_to_all": (lambda: dist.all_to_all(many(), many()), row("all_to_all", 48)),
    "all_to_all_single": (lambda: dist.all_to_all_single(x(8), x(8)), row("all_to_all_single", 32)),
    "send": (lambda: dist.send(x(), 0), row("send", how="to -1")),
    "recv": (lambda: dist.recv(x(), 3), row("recv", how="from +2")),
    "barrier": (dist.barrier, row("barrier", 0, dtype="")),
}


@pytest.mark.parametrize("call", CALLS)
def test_each_operation_is_told_with_its_reduction_root_or_partner(observer: Observer, call: str) -> None:
    issue, told = CALLS[call]
    issue()

    assert [note.collective for note in observer.notes] == [told]


def test_what_is_sent_while_it_is_paused_or_looks_away_is_passed_over(observer: Observer) -> None:
    observer.is_paused = True
    dist.all_reduce(x())
    observer.is_paused = False
    observer.look_away()
    dist.all_reduce(x())

    assert observer.notes == []


def test_groups_are_told_by_name_size_and_stride(observer: Observer) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dist.all_reduce(x(), group=mesh["tp"].get_group())

    assert set(groups_here()) == {Group("mesh_dp", 2, 2), Group("mesh_tp", 2, 1)}
    assert observer.notes[0].collective.group == "mesh_tp"


def test_the_reducer_of_ddp_gets_the_result_that_the_fake_backend_leaves_out(observer: Observer) -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    observer.notes.clear()
    model(x(4)).sum().backward()

    assert [note.collective for note in observer.notes] == [row("all_reduce", 80)]
