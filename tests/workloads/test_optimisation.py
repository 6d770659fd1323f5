"""What benchmark tasks prescribe in addition to torch's optimizers: learning rate schedules, and mixed precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from support.launching import Launch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, MultiStepLR

from pytest_distbench.errors import RecordingError
from pytest_distbench.launch.starters import Launcher
from pytest_distbench.workloads import optimisation
from pytest_distbench.workloads.optimisation import LossScale, MixedPrecision, linear_scaling, warmup

if TYPE_CHECKING:
    from pytest_distbench import RankContext


def optimizer_of(rate: float = 1.0) -> SGD:
    return SGD([torch.zeros(1)], lr=rate)


def rates(optimizer: Optimizer, schedule: LRScheduler, updates: int) -> list[float]:
    found = []
    for _ in range(updates):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize(
    ("factor", "steps", "expected"),
    [
        (4.0, 3, [0.5, 1.0, 1.5, 2.0, 2.0]),
        (2.0, 0, [1.0, 1.0]),
        (1.0, 2, [0.5, 0.5, 0.5, 0.5]),
        (math.sqrt(2), 1, [0.5, math.sqrt(0.5), math.sqrt(0.5)]),
    ],
)
def test_a_warm_up_leads_from_the_rate_to_a_multiple_of_it(factor: float, steps: int, expected: list[float]) -> None:
    optimizer = optimizer_of(0.5)

    assert rates(optimizer, warmup(optimizer, factor=factor, steps=steps), len(expected)) == pytest.approx(expected)


@pytest.mark.parametrize(("power", "last"), [(1.0, 0.08), (0.5, 0.04), (0.0, 0.02)])
def test_the_rate_follows_a_power_of_the_workers(power: float, last: float) -> None:
    optimizer = optimizer_of(0.02)
    schedule = linear_scaling(optimizer, world_size=4, epoch_steps=3, power=power)

    assert rates(optimizer, schedule, 7) == pytest.approx([0.02 + (last - 0.02) * done / 6 for done in range(7)])


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([1.0, 0.98, 0.96, 0.94], [1, 1, 1, 1]),  # falls all the time
        ([1.0, 0.995, 0.991], [1, 1, 0.5]),  # by less than 0.01
        ([1.0, 1.2, 0.5, 0.6, 0.4], [1, 1, 1, 1, 1]),  # never twice in a row
        ([1.0, 1.0, 1.0, 1.0, 1.0], [1, 1, 0.5, 0.5, 0.25]),
    ],
)
def test_the_rate_is_halved_at_a_plateau_of_two_epochs(losses: list[float], expected: list[float]) -> None:
    optimizer = optimizer_of()
    schedule = optimisation.plateau(optimizer)
    found = []
    for loss in losses:
        schedule.step(loss)
        found.append(optimizer.param_groups[0]["lr"])

    assert found == expected


def test_a_plateau_lowers_what_a_warm_up_has_reached_in_each_chain() -> None:
    optimizer = optimizer_of()
    rising, falling = warmup(optimizer, factor=4, steps=2), optimisation.plateau(optimizer, epochs=1)
    assert rates(optimizer, rising, 3) == pytest.approx([1, 2.5, 4])
    for loss in (1.0, 1.0):
        falling.step(loss)

    assert rates(optimizer, rising, 2) == pytest.approx([2, 2])

    # Report 004's GNMT in 100 steps: after 40 % of them, and then every 5 %, four times
    optimizer = optimizer_of(2e-3)
    found = rates(optimizer, optimisation.exponential_warmup(optimizer, warmup_steps=20, total_steps=100), 100)
    assert found[0] == pytest.approx(2e-3 * 0.01 ** (19 / 20))
    assert found[9] == pytest.approx(2e-4), "half way, of a hundredth a tenth"
    ratios = [b / a for a, b in pairwise(found[:20])]
    assert ratios == pytest.approx([100 ** (1 / 20)] * 19)
    halvings = [n for n, (a, b) in enumerate(pairwise(found[20:]), start=22) if b != a]
    assert halvings == [41, 46, 51, 56]
    assert found[19:40] == pytest.approx([2e-3] * 21)
    assert found[-1] == pytest.approx(2e-3 / 16)

    # Report 004's Transformer: 1000 steps of warm-up
    optimizer = optimizer_of(1.976e-3)
    found = rates(optimizer, optimisation.inverse_square_root(optimizer, warmup_steps=1000), 4000)
    told = [found[n - 1] / 1.976e-3 for n in (1, 250, 1000, 1001, 4000)]
    assert told == pytest.approx([0.001, 0.25, 1.0, math.sqrt(1000 / 1001), 0.5])

    optimizer = optimizer_of(0.1)
    schedule = ChainedScheduler([warmup(optimizer, factor=2, steps=2), MultiStepLR(optimizer, [3, 4])])
    assert rates(optimizer, schedule, 6) == pytest.approx([0.1, 0.15, 0.2, 0.02, 0.002, 0.002])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: warmup(optimizer, factor=3, steps=5),
        lambda optimizer: linear_scaling(optimizer, world_size=4, epoch_steps=3),
        lambda optimizer: optimisation.exponential_warmup(optimizer, warmup_steps=3, total_steps=20),
        lambda optimizer: optimisation.inverse_square_root(optimizer, warmup_steps=3),
    ],
)
def test_a_schedule_that_was_saved_goes_on_where_it_was(make: Callable[[Optimizer], LRScheduler]) -> None:
    optimizer = optimizer_of()
    schedule = make(optimizer)
    rates(optimizer, schedule, 4)
    states = [optimizer.state_dict(), schedule.state_dict()]
    other = optimizer_of(7.0)
    again = make(other)
    for part, state in zip((other, again), states, strict=True):
        part.load_state_dict(state)

    assert rates(other, again, 12) == rates(optimizer, schedule, 12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda o: warmup(o, factor=2, steps=1.5), "steps=1.5; wanted a whole number"),  # type: ignore[arg-type]
        (lambda o: linear_scaling(o, world_size=True, epoch_steps=1), "world_size=True; wanted"),
        (partial(linear_scaling, world_size=2, epoch_steps=0), "epoch_steps=0; wanted a whole number of at least 1"),
        (partial(linear_scaling, world_size=2, epoch_steps=1, power="1"), "power='1'; wanted"),
        (
            lambda o: optimisation.exponential_warmup(o, warmup_steps=1, total_steps=10, remain=40),
            "wanted shares of the training, found remain=40, interval=0.05",
        ),
    ],
)
def test_what_makes_no_schedule_is_refused(make: Callable[[Optimizer], Any], message: str) -> None:
    with pytest.raises(RecordingError, match=message):
        make(optimizer_of())


class Weights(nn.Module):
    """Some weights: the gradient of their product with a vector is that vector."""

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.tensor(values))

    def forward(self, vector: torch.Tensor) -> torch.Tensor:
        return (self.weights.float() * vector).sum()


def made(
    *values: float,
    scale: float = 8.0,
    window: int = 1000,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    world_size: int = 1,
    max_norm: float | None = None,
    **chosen: Any,
) -> MixedPrecision:
    return MixedPrecision(
        Weights(*values),
        lambda parameters: optimizer(parameters, **{"lr": 1.0, **chosen}),
        scale=LossScale(scale, window=window),
        world_size=world_size,
        max_norm=max_norm,
    )


def step(mixed: MixedPrecision, *vectors: list[float], weight: float = 1.0) -> bool:
    for vector in vectors:
        mixed.backward(mixed.model(torch.tensor(vector)))
    mixed.average(weight)
    return mixed.step()


def weights_of(mixed: MixedPrecision) -> list[float]:
    return [value for weights in mixed.model.parameters() for value in weights.tolist()]


# The scale


@pytest.mark.parametrize(
    ("chosen", "overflows", "values"),
    [
        ({"window": 2}, [0, 0, 0, 0, 0], [8, 16, 16, 32, 32]),
        ({"window": 2}, [0, 1, 0, 0, 1, 1], [8, 4, 4, 8, 4, 2]),
        ({"window": 1, "most": 20}, [0, 0, 0, 1], [16, 20, 20, 10]),
        ({"window": 3, "factor": 4.0}, [0, 0, 0, 1], [8, 8, 32, 8]),
    ],
)
def test_the_scale_grows_after_a_window_of_updates_and_shrinks_at_an_overflow(
    chosen: dict[str, Any], overflows: list[int], values: list[float]
) -> None:
    scale = LossScale(8.0, **chosen)
    seen = []
    for overflow in overflows:
        scale.note(overflow=bool(overflow))
        seen.append(scale.value)

    assert seen == values


@given(overflows=st.lists(st.booleans(), max_size=12), window=st.integers(1, 4))
def test_the_scale_is_that_of_torchs_scaler(overflows: list[bool], window: int) -> None:
    ours, theirs = LossScale(2.0**10, window=window), torch.amp.GradScaler("cpu", 2.0**10, growth_interval=window)
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for overflow in overflows:
        ours.note(overflow=overflow)
        theirs.scale(weight.sum()).backward()
        if overflow:
            weight.grad = torch.full((1,), math.inf)
        theirs.step(optimizer)
        theirs.update()
        optimizer.zero_grad()

        assert ours.value == theirs.get_scale()


def test_a_training_whose_gradients_always_overflow_has_diverged() -> None:
    scale = LossScale(optimisation.LEAST_SCALE, window=1)

    with pytest.raises(RecordingError, match=r"overflow float16 even at a loss scale of 6.10352e-05: the training has"):
        scale.note(overflow=True)


# A step


@pytest.mark.parametrize("scale", [1.0, 8.0, 2.0**10])
@pytest.mark.parametrize(
    ("max_norm", "expected"), [(None, [-2.0, -3.0]), (10.0, [-2.0, -3.0]), (2.5, [-0.5, -1.0]), (0.5, [0.7, 0.6])]
)
def test_the_gradient_is_clipped_after_it_was_unscaled(
    scale: float, max_norm: float | None, expected: list[float]
) -> None:
    mixed = made(1.0, 1.0, scale=scale, max_norm=max_norm)

    assert step(mixed, [3.0, 4.0])
    assert mixed.norm == pytest.approx(5.0)
    assert mixed.master[0].tolist() == pytest.approx(expected, abs=1e-5)
    assert weights_of(mixed) == pytest.approx(expected, rel=2**-11)


@pytest.mark.parametrize(("weight", "expected"), [(1.0, -3.0), (2.0, -1.0), (8.0, 0.5)])
def test_losses_are_added_and_divided_by_their_weight(weight: float, expected: float) -> None:
    mixed = made(1.0)
    step(mixed, [1.0], [3.0], weight=weight)

    assert weights_of(mixed) == [expected]


def test_the_master_has_the_digits_that_float16_has_not() -> None:
    mixed = made(1.0, lr=1e-5)
    for _ in range(100):
        step(mixed, [1.0])

    assert mixed.master[0].item() == pytest.approx(0.999, abs=1e-5)
    assert weights_of(mixed) == pytest.approx([0.999], abs=2**-11)

    assert made(0.1).master[0].item() == torch.tensor(0.1).item() != made(0.1).model(torch.ones(1)).item()

    mixed = made(8.0)
    step(mixed, [1.0])
    step(mixed, [1.0])
    assert weights_of(mixed) == [6.0]

    mixed = made(1.0)
    mixed.average(1.0)
    assert mixed.step()
    assert weights_of(mixed) == [1.0]


@pytest.mark.parametrize("wrong", [1e5, math.inf, math.nan])
def test_a_step_that_overflows_changes_nothing_but_the_scale(wrong: float) -> None:
    mixed = made(1.0, 2.0, optimizer=torch.optim.Adam)
    step(mixed, [1.0, 1.0])
    before, optimizer = weights_of(mixed), str(mixed.optimizer.state_dict())

    assert not step(mixed, [wrong, 1.0])
    assert weights_of(mixed) == before
    assert str(mixed.optimizer.state_dict()) == optimizer
    assert mixed.scale.value == 4.0
    assert step(mixed, [1.0, 1.0])


def test_a_training_that_goes_on_from_what_was_saved_is_the_same(tmp_path: Path) -> None:
    through, first = (made(0.3, 0.7, window=2, optimizer=torch.optim.Adam, lr=0.1) for _ in range(2))
    vectors = [[1.0, 2.0], [math.inf, 1.0], [0.5, -1.0], [1.0, 0.25], [0.125, 3.0]]
    for vector in vectors:
        step(through, vector)
    for vector in vectors[:3]:
        step(first, vector)
    torch.save(first.state_dict(), tmp_path / "saved.pt")
    later = made(9.0, 9.0, window=2, optimizer=torch.optim.Adam, lr=0.1)
    later.load_state_dict(torch.load(tmp_path / "saved.pt"))
    for vector in vectors[3:]:
        step(later, vector)

    assert later.master[0].tolist() == through.master[0].tolist()
    assert weights_of(later) == weights_of(through)
    assert later.scale.state_dict() == through.scale.state_dict()


# Several ranks


def ranks_with_unequal_weights(rank: RankContext) -> None:
    """Rank 0 has three tokens and a gradient of 6, rank 1 one token and a gradient of 2: the mean of a token is 2."""
    mixed = made(3.0, scale=4.0, world_size=rank.world_size)
    step(mixed, [6.0 if rank.rank == 0 else 2.0], weight=3.0 if rank.rank == 0 else 1.0)

    assert weights_of(mixed) == [1.0]


def overflow_in_one_rank(rank: RankContext) -> None:
    mixed = made(1.0, 1.0, world_size=rank.world_size)
    steps = [step(mixed, [1e5 if rank.rank == number else 1.0, 1.0]) for number in (1, 7, 0, 7)]
    masters = [torch.empty(2) for _ in range(rank.world_size)]
    dist.all_gather(masters, mixed.master[0].detach())

    assert steps == [False, True, False, True]
    assert mixed.scale.value == 2.0
    assert [master.tolist() for master in masters] == [[-1.0, -1.0]] * rank.world_size


@pytest.mark.spawn
@pytest.mark.parametrize("launcher", ["warm"], indirect=True)
@pytest.mark.parametrize("body", [ranks_with_unequal_weights, overflow_in_one_rank])
def test_ranks_average_as_one_and_skip_a_step_alike(
    launcher: Launcher, tmp_path: Path, body: Callable[[RankContext], None]
) -> None:
    record = Launch(launcher, tmp_path, Path(__file__))(body.__name__)

    assert (record.outcome, record.reason) == ("passed", "")


@pytest.mark.parametrize(("scale", "change"), [(1.0, 0.0), (2.0**10, 1e-8)])
def test_a_small_gradient_is_lost_without_a_scale(scale: float, change: float) -> None:
    mixed = made(0.0, scale=scale)
    step(mixed, [1e-8])

    assert -mixed.master[0].item() == pytest.approx(change, rel=2e-3)


def test_adam_is_torchs_on_the_master() -> None:
    mixed = made(0.5, -0.25, optimizer=torch.optim.Adam, lr=0.1, betas=(0.9, 0.98), eps=1e-9)
    plain = nn.Parameter(torch.tensor([0.5, -0.25]))
    adam = torch.optim.Adam([plain], lr=0.1, betas=(0.9, 0.98), eps=1e-9)
    for vector in ([1.0, 2.0], [0.5, -1.0], [-2.0, 0.25]):
        step(mixed, vector)
        plain.grad = torch.tensor(vector)
        adam.step()

    assert mixed.master[0].tolist() == plain.tolist()
