"""The first module that is wrong: ranks are networks in this process, compared with the whole in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pytest_distbench.layouts.deviations import limits_of
from pytest_distbench.layouts.modules import OfRank, Recorder, Search, deviations_of, of_ranks

WIDTH, SAMPLES = 6, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH, bias=False)
        self.scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = x + self.down(torch.tanh(self.up(self.norm(x)) * self.scale))
        return found


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        found: torch.Tensor = self.head(x)
        return found


def recorded(
    make: Callable[[], nn.Module], inputs: torch.Tensor, change: Callable[[Any], object], share: int
) -> Recorder:
    torch.manual_seed(0)
    model = make().to(inputs.dtype)
    change(model)
    recorder = Recorder(1)
    with recorder.watching(model):
        outputs = model(inputs)
        outputs = outputs["out"] if isinstance(outputs, dict) else outputs
        loss = outputs.square().flatten(1).mean(1).sum() / share
        recorder.see_loss(loss)
        loss.backward()
    return recorder


def searched(
    *changes: Callable[[Any], object],
    make: Callable[[], nn.Module] = Net,
    shape: Sequence[int] = (SAMPLES, WIDTH),
    parts: Sequence[int] | None = None,
) -> Search:
    """A search over ranks, one for each change; with parts each has that part of the batch."""
    inputs = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    right = recorded(make, inputs.double(), lambda model: None, SAMPLES)
    limits = limits_of([deviations_of(right, recorded(make, inputs, lambda model: None, SAMPLES))] * 4)
    ranks: list[OfRank] = []
    for i, change in enumerate(changes):
        own = inputs if parts is None else inputs.chunk(len(changes))[parts[i]]
        ranks += of_ranks(recorded(make, own, change, SAMPLES), lambda data: [data])
    return Search(right, ranks, limits)


def healthy(model: Net) -> None:
    pass


def of(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[nn.Module], object]:
    """Changes what a module puts out."""
    return lambda model: model.get_submodule(name).register_forward_hook(lambda module, args, output: change(output))


def passed_back(name: str, factor: float, *, is_own: bool) -> Callable[[nn.Module], object]:
    """Multiplies the gradient inside of a module, or before it is passed back to who made what the module takes."""

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        tensor.register_hook(lambda gradient: gradient * factor)
        return tensor * 1

    def change(model: nn.Module) -> None:
        module = model.get_submodule(name)
        if is_own:
            module.register_forward_hook(lambda module, args, output: keep(output))
        else:
            module.register_forward_pre_hook(lambda module, args: keep(args[0]))

    return change


def in_block(model: Net) -> None:
    model.blocks[1].scale = 0.5


def half(which: int) -> Callable[[nn.Module], object]:
    """A summand: of the last matrix a rank has a half, and adds up with nobody."""

    def change(model: Any) -> None:
        with torch.no_grad():
            model.blocks[0].down.weight[:, 4 * which : 4 * which + 4] = 0

    return change


def masked(output: torch.Tensor) -> torch.Tensor:
    return output * torch.tensor([0.0, *[1.0] * (WIDTH - 1)])


def shard(output: torch.Tensor) -> torch.Tensor:
    return output + torch.tensor([0.0, 0.0, 1.0, *[0.0] * (WIDTH - 3)])


DOWN = "blocks.0.down (Linear), forward"
WRONG = {
    "scaled by 2": (
        of("blocks.0.down", lambda t: t * 2),
        f"{DOWN}: it is 2 times what it should be, the number of ranks",
    ),
    "divided by 2": (of("blocks.0.down", lambda t: t / 2), f"{DOWN}: it is 0.5 times what it should be, one over the"),
    "a mask": (of("blocks.0.down", masked), f"{DOWN}: it is 0 in 4 of 24 elements, as under a mask"),
    "a shard": (of("blocks.0.down", shard), f"{DOWN}: it is off by "),
    "0": (of("blocks.0.down", lambda t: t * 0), f"{DOWN}: it is 0"),
    "not finite": (of("blocks.0.down", lambda t: t / 0), f"{DOWN}: it is not finite"),
    "in the block": (
        in_block,
        "in blocks.1.forward (Block), behind blocks.1.up, forward: what blocks.1.down takes: it is",
    ),
    "backward": (passed_back("blocks.1.up", 3, is_own=True), "blocks.1.up (Linear), backward: it is 3 times what it"),
    "backward in the block": (
        passed_back("blocks.1.down", 3, is_own=False),
        "in blocks.1.forward (Block), before blocks.1.down, backward: what blocks.1.up puts out: it is 3 times",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_the_first_wrong_module_is_named_with_how_far_it_is_off(fault: str) -> None:
    change, sentence = WRONG[fault]

    assert searched(change, change).sentence().startswith(sentence)


def test_one_rank_alone_is_named() -> None:
    assert "rank 1's is 2 times" in searched(healthy, of("blocks.0.down", lambda t: t * 2)).sentence()


def test_a_rank_has_a_slice_and_of_a_wrong_one_it_is_said() -> None:
    assert searched(healthy, healthy, parts=[0, 1]).sentence() == ""
    found = searched(healthy, of("head", lambda t: t * 3), parts=[0, 1]).sentence()

    assert found == "head (Linear), forward: rank 1's slice is 3 times what it should be"


def test_a_slice_may_be_of_any_dimension_and_place() -> None:
    kept = [of("blocks.0.up", lambda t: t), of("blocks.0.up", lambda t: t)]

    assert searched(*kept, parts=[1, 0]).sentence() == ""


def test_a_shard_is_said_with_its_place() -> None:
    assert "at 2 to 2 of dimension 1 alone" in searched(of("blocks.0.down", shard)).sentence()


def test_a_summand_that_is_used_as_if_it_were_whole_is_not_reduced() -> None:
    assert searched(half(0), half(1)).sentence() == (
        f"{DOWN}: what it puts out is not reduced: the sum over ranks is right, and blocks.0 (Block) uses it as if it "
        "were whole"
    )


def test_ranks_with_the_same_samples_are_reported() -> None:
    assert searched(healthy, healthy, parts=[0, 0]).sentence() == (
        "modules are right, but ranks 0 and 1 have the same part, and all ranks together have 2 of 4 of dimension 0"
    )


class Routed(Net):
    """Each sample is in two rows, as of a token that two experts get."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = super().forward(torch.cat([x, x])).chunk(2)
        return first + second


def test_rows_that_are_equal_are_not_counted_twice() -> None:
    assert searched(healthy, healthy, make=Routed, parts=[0, 1]).sentence() == ""
    assert "all ranks together have 2 of 4" in searched(healthy, healthy, make=Routed, parts=[0, 0]).sentence()


class Experts(Net):
    """Each sample is given to one of two experts. Both get four of eight; of the first half of these three, and one."""

    def __init__(self) -> None:
        super().__init__()
        self.choice = nn.Identity()
        self.experts = nn.ModuleList([Block(), Block()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.zeros_like(x)
        first, second = (self.choice(is_given.nonzero().flatten()) for is_given in (x[:, 3] > -0.1, x[:, 3] <= -0.1))
        found = found.index_put((first,), self.experts[0](x[first]))
        found = found.index_put((second,), self.experts[1](torch.zeros_like(x[second])))  # whose samples are all equal
        return super().forward(found)


def test_of_the_samples_of_an_expert_a_rank_has_any_number_under_numbers_of_its_own() -> None:
    assert searched(healthy, healthy, make=Experts, shape=(8, WIDTH), parts=[0, 1]).sentence() == ""
    assert "have 4 of 8" in searched(healthy, healthy, make=Experts, shape=(8, WIDTH), parts=[0, 0]).sentence()


class Gated(nn.Module):
    """Two modules take one tensor, of which there is one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3), nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        found: torch.Tensor = self.gate(y).sigmoid() * self.up(y)
        return found


def test_of_modules_that_take_one_tensor_all_are_named() -> None:
    wrong = passed_back("gate", 3, is_own=True)

    assert searched(wrong, wrong, make=Gated).sentence().startswith("up (Linear) or gate (Linear), backward: it is off")


class Residual(nn.Module):
    """A block of a ResNet: what comes before changes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 3, 3, padding=1)
        self.norm1, self.norm2 = nn.GroupNorm(2, 4), nn.GroupNorm(3, 3)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm2(self.second(self.relu(self.norm1(self.first(x)))))
        y += x
        found: torch.Tensor = self.relu(y)
        return found


class Tied(nn.Module):
    """One module in three places, and a dict as output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.last.weight = self.layer.weight

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        for _ in range(3):
            x = torch.tanh(self.layer(x))
        return {"out": self.last(x), "hidden": x}


class Checkpointed(Net):
    """What it computes, it computes again in the backward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.requires_grad_()
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        found: torch.Tensor = self.head(x)
        return found


class Attended(Net):
    """What it adds is the least number that its dtype has, as in masks of attention."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        least = self.blocks[1].norm(torch.full_like(x, torch.finfo(x.dtype).min))
        found: torch.Tensor = super().forward(x) + 0 * least.nan_to_num(0, 0, 0).sum()
        return found


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (Residual, (SAMPLES, 3, 5, 5)),
        (Tied, (SAMPLES, WIDTH)),
        (Checkpointed, (SAMPLES, WIDTH)),
        (Attended, (SAMPLES, WIDTH)),
    ],
)
def test_what_is_healthy_has_no_wrong_module(make: Callable[[], nn.Module], shape: Sequence[int]) -> None:
    search = searched(healthy, healthy, make=make, shape=shape, parts=[0, 1])

    assert search.sentence() == ""
    last = searched(
        healthy, of("" if make is Residual else "layer" if make is Tied else "head", _spoilt), make=make, shape=shape
    )
    assert "rank 1's is 2 times" in last.sentence()


def _spoilt(output: Any) -> Any:
    return output * 2
