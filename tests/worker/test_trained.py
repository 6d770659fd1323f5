"""What a training leaves: tensors as digests and sketches, and what its optimizers train."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from support.fake_world import fake_rank
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel

from pytest_distbench.records.trained import Trained
from pytest_distbench.worker.tensors import digest, form_of, local_part, own_part, sketch, state_of, state_of_number
from pytest_distbench.worker.torch_internals import graph_nodes
from pytest_distbench.worker.trained import TrainingWatch, options_of, replicas_of


class Timing:
    """Whether one runs."""

    runs = False


@pytest.fixture
def watch() -> Any:
    Timing.runs = False
    made = TrainingWatch(is_on=True, is_clocked=lambda: Timing.runs)
    made.begin()
    yield made
    made.finish()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has an element for each search through the objects of this process."""
    found: list[int] = []
    objects = gc.get_objects
    monkeypatch.setattr(gc, "get_objects", lambda: found.append(1) or objects())
    return found


def update(net: nn.Module, *optimizers: torch.optim.Optimizer, times: int = 1) -> None:
    for _ in range(times):
        net.zero_grad()
        net(torch.eye(4, 3)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()


def step_by_group(optimizer: torch.optim.Optimizer, groups: Sequence[dict[str, Any]]) -> None:
    """Step as a framework does that gives an optimizer one parameter group at a time."""
    for group in groups:
        optimizer.param_groups = [group]
        optimizer.step()


def test_weights_have_the_names_of_the_outermost_module_and_are_those_at_the_end(watch: TrainingWatch) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1, bias=False))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    update(net, optimizer, times=9)
    with torch.no_grad():
        net[2].weight.zero_()
    found = watch.finish()

    assert found.names == ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight"]
    assert found.weights.keys() == {*found.names, "1.running_mean", "1.running_var"}
    assert found.weights["2.weight"].norm == 0.0 < found.weights["0.weight"].change
    assert [(update, len(digests)) for update, digests in found.checks] == [(1, 5), (2, 5), (4, 5), (8, 5)]
    assert found.updates == 9


def test_what_is_gone_was_read_when_it_went(watch: TrainingWatch) -> None:
    def train() -> None:
        net = nn.Linear(3, 1)
        update(net, torch.optim.SGD(net.parameters(), lr=0.1), times=2)

    train()
    gc.collect()

    assert watch.finish().weights["weight"].change > 0


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


def test_one_look_is_enough_for_an_optimizer_per_parameter(watch: TrainingWatch, looks: list[int]) -> None:
    net = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4)), nn.BatchNorm1d(3))
    each = [torch.optim.SGD([parameter], lr=0.1) for parameter in net.parameters()]
    update(net, *each, times=2)
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
    assert found.weights["0.weight"].change > 0
    assert found.options["SGD: lr"] == "0.1 | 0.01"


def test_an_optimizer_that_steps_once_per_group_is_looked_at_once_and_read_whole(
    watch: TrainingWatch, looks: list[int]
) -> None:
    net, loose = nn.Linear(3, 1), nn.Parameter(torch.ones(1, requires_grad=True))
    groups = [{"params": net.weight, "weight_decay": 0.5}, {"params": net.bias}, {"params": [loose]}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    all_groups = list(optimizer.param_groups)
    for _ in range(3):
        (net(torch.eye(3)).square().mean() + loose.square().sum()).backward()
        step_by_group(optimizer, all_groups)
    found = watch.finish()

    assert (len(looks), found.names) == (1, ["weight", "bias", "group 2, parameter 0"])
    assert found.weights.keys() == set(found.names)
    assert found.options["SGD: weight_decay"] == "0.5 | 0 | 0"


def test_tensors_are_read_before_and_between_timed_iterations_and_never_inside(watch: TrainingWatch) -> None:
    net = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    watch.before_loop()
    Timing.runs = True
    update(net, optimizer, times=3)
    watch.between_steps()
    update(net, optimizer)
    watch.between_steps()
    watch.between_steps()
    found = watch.finish()

    assert [update for update, _ in found.checks] == [3, 4]
    assert found.weights["weight"].change > 0


def test_an_optimizer_that_first_steps_in_a_timed_iteration_is_not_read(watch: TrainingWatch) -> None:
    net = nn.Linear(3, 1)
    Timing.runs = True
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


def reduces_nothing(_, bucket):  # a communication hook; DDP refuses annotations that are text
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def test_weights_are_read_where_somebody_elses_hook_reduces_in_a_group_unknown_to_torch(watch: TrainingWatch) -> None:
    """torchft does this."""
    with fake_rank(world_size=2):
        ddp = DistributedDataParallel(nn.Linear(3, 1), process_group=(own := dist.new_group([0, 1])))
        ddp.register_comm_hook(None, reduces_nothing)
        dist.destroy_process_group(own)
        update(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1))
        found = watch.finish()

    assert (found.remarks, found.replicas, set(found.weights)) == ([], {}, {"weight", "bias"})


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
    found = options_of(optimizer, [StepLR(optimizer, 30)], 0, optimizer.param_groups)
    told = {name: found[name] for name in ("AdamW: lr", "AdamW: betas", "StepLR: step_size")}

    assert told == {"AdamW: lr": 0.25, "AdamW: betas": "0.9, 0.999", "StepLR: step_size": 30}
    assert found["AdamW: weight_decay"] == "0.1 | 0.0"
    assert not {"StepLR: last_epoch", "AdamW: params"} & found.keys()
    assert options_of(optimizer, [], 2, [{"lr": 1.0}])["AdamW (optimizer 2): lr"] == 1.0


class Private(torch.optim.SGD):
    """An optimizer that can be closed: its parameter groups cannot be read any more then."""

    is_closed = False

    @property
    def param_groups(self) -> Any:
        if self.is_closed:
            raise RuntimeError("not yours")
        return self.__dict__["groups"]

    @param_groups.setter
    def param_groups(self, groups: Any) -> None:
        self.__dict__["groups"] = groups


def test_an_optimizer_that_cannot_be_looked_at_trains_all_the_same(watch: TrainingWatch) -> None:
    net = nn.Linear(3, 1)
    optimizer = Private(net.parameters(), lr=0.1)
    optimizer.is_closed = True
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


SIZES = (1, 3, 7, 8, 9, 8191, 8192, 8193, 70_000)
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool, torch.complex64)


def values(size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", SIZES)
def test_a_digest_sees_every_bit_and_the_order(size: int) -> None:
    tensor = values(size)

    assert digest(tensor.clone()) == digest(tensor)
    assert digest(-tensor) != digest(tensor)
    for at in {0, size // 2, size - 1}:
        other = tensor.clone()
        other[at] = torch.nextafter(other[at], torch.tensor(9.0))
        assert digest(other) != digest(tensor)
    if size > 2:
        assert digest(tensor.flip(0)) != digest(tensor)
        assert digest(tensor.roll(1)) != digest(tensor)


def test_places_that_a_product_of_coefficients_would_confuse_are_told_apart() -> None:
    rows = values(128 * 8192).view(128, 8192)  # tiles, of which two words are exchanged across the diagonal
    other = rows.clone()
    other[3, 10:12], other[5, 6:8] = rows[5, 6:8], rows[3, 10:12]

    assert digest(other) != digest(rows)
    assert digest(rows.view(8192, 128).t().contiguous()) != digest(rows)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_has_a_state(dtype: torch.dtype) -> None:
    tensor = (values(30).abs() * 9).to(dtype)
    state = state_of(tensor)

    assert state is not None
    assert state.form == f"{str(dtype).removeprefix('torch.')} 30"
    wanted = torch.linalg.vector_norm(torch.view_as_real(tensor) if tensor.is_complex() else tensor.double())
    assert state.norm == pytest.approx(float(wanted), rel=1e-4)


def sharded_table(*lengths: int) -> torch.Tensor:
    """A table of two columns in shards of these lengths; those of one row lie on rank 1, the others on rank 0."""
    from torch.distributed._shard.metadata import ShardMetadata
    from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor, ShardedTensorMetadata, TensorProperties

    offsets = [sum(lengths[:i]) for i in range(len(lengths))]
    ranks = [0 if length > 1 else 1 for length in lengths]
    shards = [ShardMetadata([at, 0], [n, 2], f"rank:{r}/cpu") for at, n, r in zip(offsets, lengths, ranks, strict=True)]
    metadata = ShardedTensorMetadata(shards, torch.Size([sum(lengths), 2]), TensorProperties(torch.float32))
    here = [Shard(torch.full(each.shard_sizes, 3.0), each) for each in shards if each.shard_sizes[0] > 1]
    return ShardedTensor._init_from_local_shards_and_global_metadata(here, metadata)


@pytest.mark.filterwarnings("ignore:Please use DTensor instead:FutureWarning")
def test_a_table_of_shards_has_the_values_that_lie_on_its_rank() -> None:
    """A rank has one shard of one of torchrec's tables, several or none."""
    with fake_rank(world_size=2):
        parts = [own_part(sharded_table(*lengths)) for lengths in [(2, 1), (2, 3), (1, 1)]]

    assert [None if part is None else part.numel() for part in parts] == [4, 10, 0]
    assert form_of(parts[0]) == "float32 2x2"  # type: ignore[arg-type]


def test_to_look_at_the_part_of_a_shared_tensor_records_nothing_for_autograd() -> None:
    """A training step would begin where autograd has recorded something."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    with fake_rank(world_size=2):
        shared = distribute_tensor(torch.ones(4, 2), init_device_mesh("cpu", (2,)), [Shard(0)]).requires_grad_()
        recorded = graph_nodes()
        part = local_part(shared)

        assert (graph_nodes(), part.shape) == (recorded, (2, 2))


def test_what_has_no_readable_values_has_no_state() -> None:
    sparse = torch.eye(3).to_sparse()
    fake = torch.empty(3, device="meta")

    assert state_of(sparse) is None
    assert state_of(fake) is None
    assert own_part(torch.eye(3).t()[:, 1:]).is_contiguous()  # type: ignore[union-attr]
    assert form_of(torch.tensor(1.0)) == "float32"


@given(st.integers(0, 1000), st.sampled_from((5, 500, 20_000)), st.floats(1e-6, 10.0))
def test_a_sketch_estimates_the_norm_of_a_difference(seed: int, size: int, scale: float) -> None:
    tensor, other = values(size, seed), values(size, seed + 1) * scale
    found = sketch(tensor).distance(sketch(tensor + other))

    true = float(torch.linalg.vector_norm(other))
    assert 0.15 * true < found < 3 * true  # eight products: chi with eight degrees of freedom
    assert sketch(tensor).norm == pytest.approx(float(torch.linalg.vector_norm(tensor)), rel=1e-5)


def test_a_state_has_the_change_of_a_tensor() -> None:
    first = values(5000)
    state = state_of(first + 0.1, first=sketch(first))

    assert state is not None
    assert state.change == pytest.approx(0.1 * 5000**0.5, rel=0.7)
    assert state_of(first, first=sketch(first)).change == 0.0  # type: ignore[union-attr]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_have_a_digest(value: float) -> None:
    state, other = state_of(torch.full((4,), value)), state_of(torch.zeros(4))

    assert state is not None
    assert other is not None
    assert (state.norm, state.product) == (0.0, 0.0)
    assert state.digest != other.digest


def test_a_sketch_is_the_same_under_autocast() -> None:
    tensor = values(9000)
    with torch.autocast("cpu", torch.bfloat16):
        assert sketch(tensor) == sketch(tensor.clone())
    assert sketch(tensor).norm == sketch(tensor.clone()).norm


def test_numbers_differ_by_their_bits() -> None:
    assert state_of_number(3) == state_of_number(3.0)
    assert state_of_number(0.1 + 0.2) != state_of_number(0.3)
    assert state_of_number(float("inf")) != state_of_number(float("-inf"))
    assert state_of_number(float("nan")).norm == state_of_number(float("inf")).norm == 0.0
