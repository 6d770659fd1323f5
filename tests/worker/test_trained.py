"""What a watch says of trainings inside this process."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from support.fake_world import fake_rank
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel

from pytest_distbench.records.trained import Trained
from pytest_distbench.worker.trained import TrainingWatch, options_of, replicas_of


class Clock:
    """Whether one runs."""

    runs = False


@pytest.fixture
def watch() -> Any:
    Clock.runs = False
    made = TrainingWatch(is_on=True, is_clocked=lambda: Clock.runs)
    made.begin()
    yield made
    made.finish()


def update(net: nn.Module, optimizer: torch.optim.Optimizer, times: int = 1) -> None:
    for _ in range(times):
        optimizer.zero_grad()
        net(torch.eye(4, 3)).square().mean().backward()
        optimizer.step()


def test_weights_have_the_names_of_the_outermost_module_and_are_those_at_the_end(watch: TrainingWatch) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1, bias=False))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    update(net, optimizer, times=9)
    with torch.no_grad():
        net[2].weight.zero_()
    found = watch.finish()
    told = set(found.weights)

    assert told == {*("0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "2.weight")}
    assert found.weights["2.weight"].norm == 0.0
    assert found.weights["0.weight"].moved > 0
    assert found.updates == 9
    assert [update for update, _ in found.checks] == [1, 2, 4, 8]
    assert found.names == ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight"]
    assert all(len(digests) == 5 for _, digests in found.checks)


def test_what_is_gone_was_read_when_it_went(watch: TrainingWatch) -> None:
    def train() -> None:
        net = nn.Linear(3, 1)
        update(net, torch.optim.SGD(net.parameters(), lr=0.1), times=2)

    train()
    gc.collect()

    assert watch.finish().weights["weight"].moved > 0


def test_the_second_of_two_models_has_its_own_names(watch: TrainingWatch) -> None:
    nets = [nn.Sequential(nn.Linear(3, 1)), nn.Sequential(nn.Linear(3, 1)), nn.Linear(3, 1)]
    for net in nets:
        update(net, torch.optim.SGD(net.parameters(), lr=0.1))
    found = watch.finish()
    told = list(found.names)

    assert told == [*("0.weight", "0.bias", "Sequential.0.weight", "Sequential.0.bias", "Linear.weight", "Linear.bias")]


def test_tensors_of_no_module_are_numbered_and_an_average_is_read(watch: TrainingWatch) -> None:
    loose = torch.ones(3, requires_grad=True)
    net = nn.Linear(3, 1)
    average = AveragedModel(net)
    optimizer = torch.optim.SGD([{"params": net.parameters()}, {"params": [loose]}], lr=0.1)
    update(net, optimizer, times=2)
    average.update_parameters(net)
    found = watch.finish()

    assert {"group 1, parameter 0", "average.weight", "weight"} <= found.weights.keys()
    assert found.weights["average.weight"].digest == found.weights["weight"].digest


def test_one_look_is_enough_for_an_optimizer_per_parameter(
    watch: TrainingWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4)), nn.BatchNorm1d(3))
    each = [torch.optim.SGD([parameter], lr=0.1) for parameter in net.parameters()]
    looks = []
    objects = gc.get_objects
    monkeypatch.setattr(gc, "get_objects", lambda: looks.append(1) or objects())
    for _ in range(2):
        net(torch.eye(3)).square().mean().backward()
        for optimizer in each:
            optimizer.step()
    other = nn.Linear(3, 1)
    update(other, torch.optim.SGD(other.parameters(), lr=0.1))
    found = watch.finish()

    assert len(looks) == 2  # the other model may well have been made between
    assert found.names == [*(name for name, _ in net.named_parameters()), "Linear.weight", "Linear.bias"]
    assert {"4.running_mean", "4.running_var"} < found.weights.keys()


def test_a_group_that_is_added_later_is_read_too(watch: TrainingWatch) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(net[1].parameters(), lr=0.1)
    update(net, optimizer)
    optimizer.add_param_group({"params": net[0].parameters(), "lr": 0.01})
    update(net, optimizer)
    found = watch.finish()

    assert found.names == ["1.weight", "1.bias", "0.weight", "0.bias"]
    assert found.weights["0.weight"].moved > 0
    assert found.options["SGD: lr"] == "0.1 | 0.01"


def test_nothing_is_read_while_a_clock_runs_but_before_and_between(watch: TrainingWatch) -> None:
    net = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    watch.before_loop()
    Clock.runs = True
    update(net, optimizer, times=3)
    watch.between_steps()
    update(net, optimizer)
    watch.between_steps()
    watch.between_steps()
    found = watch.finish()

    assert [update for update, _ in found.checks] == [3, 4]
    assert found.weights["weight"].moved > 0


def test_an_optimizer_that_is_first_seen_under_a_clock_is_not_read(watch: TrainingWatch) -> None:
    net = nn.Linear(3, 1)
    Clock.runs = True
    update(net, torch.optim.SGD(net.parameters(), lr=0.1))

    assert (watch.finish().weights, watch.finish()) == ({}, Trained())


def test_a_watch_that_is_off_leaves_no_hook() -> None:
    watch = TrainingWatch(is_on=False)
    watch.begin()
    net = nn.Linear(3, 1)
    update(net, torch.optim.SGD(net.parameters(), lr=0.1))

    assert watch.finish() == Trained()


def test_ddp_keeps_equal_what_it_manages_and_reduces(watch: TrainingWatch) -> None:
    with fake_rank(world_size=2):
        net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["1.bias"])
        net[0].bias.requires_grad_(False)
        ddp = DistributedDataParallel(net)
        update(ddp, torch.optim.SGD(net.parameters(), lr=0.1))

        assert watch.finish().replicas == {"0.weight": [0, 1], "1.weight": [0, 1]}


def test_an_update_without_a_reduction_ends_that(watch: TrainingWatch) -> None:
    with fake_rank(world_size=2):
        net = nn.Linear(3, 1)
        ddp = DistributedDataParallel(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        update(ddp, optimizer)
        with ddp.no_sync():
            update(ddp, optimizer)

        assert watch.finish().replicas == {}


def test_a_replicate_dimension_keeps_equal_what_the_other_shards() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    with fake_rank(5, world_size=8):
        mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("replicate", "shard"))

        assert replicas_of(distribute_tensor(torch.ones(8), mesh, [Replicate(), Shard(0)])) == [1, 5]
        assert replicas_of(distribute_tensor(torch.ones(8), mesh, [Shard(0), Shard(0)])) == []
    assert replicas_of(torch.ones(3)) == []


def test_options_are_of_a_group_where_groups_differ_and_of_schedulers() -> None:
    nets = [nn.Linear(3, 1), nn.Linear(3, 1)]
    groups: Any = [{"params": nets[0].parameters()}, {"params": nets[1].parameters(), "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=torch.tensor(0.25), weight_decay=0.1 * (1 + 1e-12))
    found = options_of(optimizer, [StepLR(optimizer, 30)], 0)
    told = {name: found[name] for name in ("AdamW: lr", "AdamW: betas", "StepLR: step_size")}

    assert told == {"AdamW: lr": 0.25, "AdamW: betas": "0.9, 0.999", "StepLR: step_size": 30}
    assert found["AdamW: weight_decay"] == "0.1 | 0.0"
    assert not {"StepLR: last_epoch", "AdamW: params"} & found.keys()
    assert options_of(torch.optim.SGD(nets[0].parameters(), lr=1.0), [], 2)["SGD (optimizer 2): lr"] == 1.0


def test_an_optimizer_that_cannot_be_looked_at_trains_all_the_same(watch: TrainingWatch) -> None:
    class Odd(torch.optim.SGD):
        @property
        def param_groups(self) -> Any:
            if looked_at:
                raise RuntimeError("not yours")
            return self.__dict__["groups"]

        @param_groups.setter
        def param_groups(self, groups: Any) -> None:
            self.__dict__["groups"] = groups

    looked_at: list[int] = []
    net = nn.Linear(3, 1)
    optimizer = Odd(net.parameters(), lr=0.1)
    looked_at.append(1)
    watch.before_loop()

    assert watch.finish().remarks == ["weights were not read: RuntimeError: not yours"]
    del optimizer


def test_the_model_of_a_later_fold_has_names_of_its_own(watch: TrainingWatch) -> None:
    for _ in range(2):
        net = nn.Linear(3, 1)
        update(net, torch.optim.SGD(net.parameters(), lr=0.1))
        del net
        gc.collect()

    assert list(watch.finish().names) == ["weight", "bias", "Linear.weight", "Linear.bias"]
