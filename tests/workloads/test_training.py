"""Helpers for distributed trainings: set-up, shards, counts of samples, checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.plans import make_plan
from support.ranks import make_rank
from torch.optim import Adam
from torch.optim.lr_scheduler import StepLR

from pytest_distbench.errors import ConfigurationError, RecordingError
from pytest_distbench.records.plan import BodyReference, Ranks
from pytest_distbench.worker import bodies, checkpoints
from pytest_distbench.workloads import sweep
from pytest_distbench.workloads import training as module
from pytest_distbench.workloads.training import Checkpoints, accuracy_over_ranks, make_deterministic, sharded_batches

CPU = torch.device("cpu")


def rank_of(rank: int, world_size: int) -> Any:
    return SimpleNamespace(rank=rank, world_size=world_size, seed=3, only_structure=False, device=CPU)


@given(world_size=st.integers(1, 9), batch=st.integers(1, 7), more=st.integers(0, 60), epoch=st.integers(0, 3))
def test_shards_of_any_epoch_are_disjoint_complete_and_of_equally_many_batches(
    world_size: int, batch: int, more: int, epoch: int
) -> None:
    samples = batch * world_size + more
    steps = module.epoch_steps(rank_of(0, world_size), samples=samples, batch=batch)
    shards = [
        [*islice(sharded_batches(rank_of(r, world_size), samples=samples, batch=batch, start=epoch * steps), steps)]
        for r in range(world_size)
    ]

    assert sorted(torch.cat([one for shard in shards for one in shard]).tolist()) == list(range(samples))
    assert {len(one) for shard in shards for one in shard[:-1]} <= {batch}
    last = [len(shard[-1]) for shard in shards]
    assert 1 <= min(last) <= max(last) <= min(min(last), batch) + 1


def test_batches_of_an_epoch_have_an_order_of_their_own_and_all_where_nothing_is_learnt() -> None:
    first, second = islice(sharded_batches(rank_of(0, 1), samples=50, batch=50), 2)
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(50))
    assert first.tolist() != second.tolist()

    scores = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    assert accuracy_over_ranks(make_rank(), torch.nn.Identity(), scores, torch.tensor([0, 1, 1, 1])) == 0.75

    rank = SimpleNamespace(rank=63, world_size=64, seed=3, only_structure=True, device=CPU)
    assert sorted(next(sharded_batches(rank, samples=7, batch=7)).tolist()) == list(range(7))


def test_an_epochs_indices_are_sent_once_to_where_the_samples_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent at every step, they would make the host wait for the GPU, and an injected ``item()`` would cost nothing."""
    rank = rank_of(0, 1)
    rank.device = torch.device("meta")
    sent = []
    to = torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, device: sent.append(device) or to(tensor, device))
    batches = list(islice(sharded_batches(rank, samples=40, batch=4), 20))
    [on_cpu] = islice(sharded_batches(rank, samples=4, batch=4, device="cpu"), 1)

    assert [batch.device.type for batch in batches] == ["meta"] * 20
    assert sent == [rank.device, rank.device, "cpu"]
    assert sorted(on_cpu.tolist()) == [0, 1, 2, 3]


accuracy = partial(accuracy_over_ranks, make_rank(), torch.nn.Identity())


@pytest.mark.parametrize(("top", "share"), [(1, 0.25), (2, 0.5), (3, 0.75)])
def test_a_label_among_the_highest_scores_is_right(top: int, share: float) -> None:
    scores = torch.tensor([[4.0, 3.0, 2.0, 1.0]] * 4)

    assert accuracy(scores, torch.arange(4), top=top) == share


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("batch", [1, 2, 7, 100])
def test_the_mean_over_a_test_set_does_not_depend_on_how_it_is_cut(world_size: int, batch: int) -> None:
    values, labels = torch.arange(7.0), torch.tensor([0.0, 0, 0, 1, 1, 1, 1])
    net = torch.nn.Dropout(0.9)  # which leaves everything as it is, while it is evaluated
    sums: list[float] = []
    for number in range(world_size):
        rank = rank_of(number, world_size)
        rank.sum_over_ranks = lambda own: sums.append(own) or own
        measures = (lambda scores, wanted: scores.sum(), lambda scores, wanted: (scores * wanted).sum())
        module.mean_over_ranks(rank, net, values, labels, *measures, batch=batch)

    assert (sum(sums[::2]), sum(sums[1::2])) == (21, 18)
    assert net.training


@dataclass(frozen=True)
class Preset:
    rate: float
    width: int = 3


@pytest.mark.parametrize(
    ("params", "row"),
    [
        ({"preset": "small"}, Preset(0.1)),
        ({"preset": "report", "goal": 0.8, "data": None}, Preset(0.2, 16)),
        ({"preset": "report", "rate": 0.0}, Preset(0.0, 16)),
        ({"preset": "small", "width": 7, "rate": 1.0}, Preset(1.0, 7)),
    ],
)
def test_a_preset_is_a_row_and_what_the_parameters_say_otherwise(params: dict[str, Any], row: Preset) -> None:
    rank = make_rank()
    rank.params = params

    assert module.preset_of(rank, {"small": Preset(0.1), "report": Preset(0.2, 16)}) == row


@pytest.mark.parametrize("params", [{}, {"preset": "large"}, {"preset": None}])
def test_an_unknown_preset_is_an_error_that_lists_the_known_ones(params: dict[str, Any]) -> None:
    rank = make_rank()
    rank.params = params

    with pytest.raises(ConfigurationError, match=r"unknown preset .*: known are small, report"):
        module.preset_of(rank, {"small": Preset(0.1), "report": Preset(0.2)})


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda: make_deterministic(2**64), r"seed=1844.*; wanted a whole number of at least -9223372036854775808"),
        (lambda: make_deterministic(1.5), "seed=1.5; wanted"),  # type: ignore[arg-type]
        (lambda: sharded_batches(rank_of(0, 4), samples=7, batch=2), "7 samples over 4 ranks leave 1 each"),
        (lambda: sharded_batches(rank_of(0, 1), samples=7, batch=0), "batch=0; wanted a whole number of at least 1"),
        (lambda: sharded_batches(rank_of(0, 1), samples="7", batch=1), "samples='7'; wanted"),  # type: ignore[arg-type]
        (lambda: accuracy(torch.ones(3, 5), torch.ones(3), top=5), "top=5 of 5 classes: every answer would be right"),
        (lambda: accuracy(torch.ones(3, 2), torch.ones(2)), r"found shapes \[3, 2\] and \[2\]"),
        (lambda: accuracy(torch.ones(0, 2), torch.ones(0)), "of at least 1 samples"),
    ],
)
def test_what_makes_no_training_is_refused_where_it_is_given(work: Callable[[], object], message: str) -> None:
    with pytest.raises(RecordingError, match=message):
        work()


def test_cublas_gets_a_fixed_workspace_unless_the_user_has_chosen_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    try:
        make_deterministic(1)
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
        make_deterministic(1)
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    finally:
        torch.use_deterministic_algorithms(mode=False)


@dataclass(frozen=True)
class Row:
    batch: int
    widths: tuple[int, ...]


@pytest.mark.parametrize(
    ("make", "described"),
    [
        (partial(torch.optim.SGD, lr=4.0), "SGD(lr=4.0)"),
        (
            partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4),
            "SGD(lr=0.1, momentum=0.9, weight_decay=0.0001, nesterov=True)",
        ),
        (partial(Adam, lr=2e-3, betas=(0.9, 0.98), eps=1e-9), "Adam(lr=0.002, betas=(0.9, 0.98), eps=1e-09)"),
        (partial(torch.optim.AdamW), "AdamW(lr=0.001)"),
    ],
)
def test_a_set_up_has_what_is_not_the_default_of_the_optimizer(
    make: Callable[..., torch.optim.Optimizer], described: str
) -> None:
    """Also behind a schedule that has changed the rate."""
    rank = make_rank()
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1, bias=False))
    model[1].requires_grad_(requires_grad=False)
    optimizer = make(model.parameters())
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
    module.record_setup(rank, model, optimizer, preset=Row(batch=64, widths=(3, 2)), schedule="halved on a plateau")
    parameters, tensors = rank.notebook.observations

    assert (parameters.values, tensors.values) == ([8], [2])
    assert parameters.facts == {
        "model": "Sequential",
        "optimizer": described,
        "schedule": "halved on a plateau",
        "batch": 64,
        "widths": "(3, 2)",
    }


class Training:
    """A network with dropout, which draws random numbers, momentum, and a rate that falls."""

    def __init__(self, seed: int, folder: Path | None) -> None:
        torch.manual_seed(seed)
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.schedule = StepLR(self.optimizer, 2)
        rank = make_rank()
        rank.params = {} if folder is None else {"checkpoints": str(folder)}
        self.checkpoints = Checkpoints(rank, model=self.net, optimizer=self.optimizer, schedule=self.schedule)

    def losses(self, steps: int, *, saved_at: int = 0) -> list[float]:
        found = []
        for step in range(1, steps + 1):
            loss = self.net(torch.ones(3, 4)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            found.append(loss.item())
            if step == saved_at:
                self.checkpoints.save(step)
        return found


@pytest.mark.parametrize("saved_at", [1, 3, 6])
def test_a_training_goes_on_from_the_step_it_was_saved_at(saved_at: int, tmp_path: Path) -> None:
    whole = Training(1, tmp_path).losses(8, saved_at=saved_at)
    later = Training(2, tmp_path)  # another seed: all that counts was saved

    assert later.checkpoints.step == saved_at
    assert later.losses(8 - saved_at) == whole[saved_at:]


def test_steps_are_counted_over_all_launches(tmp_path: Path) -> None:
    whole = Training(1, None).losses(7)
    for steps in (2, 3):
        Training(1, tmp_path).losses(steps, saved_at=steps)
    last = Training(1, tmp_path)

    assert last.checkpoints.step == 5
    assert last.losses(2) == whole[5:]


def test_each_rank_goes_on_with_random_numbers_of_its_own(tmp_path: Path) -> None:
    """Rank 1 of two; what rank 0 would have written is made here."""
    first: Any = Training(1, tmp_path)
    first.losses(2, saved_at=2)
    saved = checkpoints.load(tmp_path, 2)
    torch.manual_seed(77)
    saved["random"].append(bytes(torch.get_rng_state().numpy()))
    drawn = torch.rand(3)
    checkpoints.save(tmp_path, 3, saved)
    rank: Any = make_rank()
    rank.params, rank.rank, rank.world_size = {"checkpoints": str(tmp_path)}, 1, 2
    Checkpoints(rank, model=first.net, optimizer=first.optimizer, schedule=first.schedule)

    assert torch.rand(3).tolist() == drawn.tolist()


@pytest.mark.parametrize(("ranks", "name"), [(3, "model"), (1, "network"), (2, "optimizer")])
def test_what_was_saved_of_another_training_is_refused(ranks: int, name: str, tmp_path: Path) -> None:
    net = torch.nn.Linear(1, 1)
    rank: Any = make_rank()
    rank.params = {"checkpoints": str(tmp_path)}
    Checkpoints(rank, model=net).save(5)
    rank.world_size = ranks

    text = f"a training of {ranks} ranks with {name}, found one of 1 ranks with mod"
    with pytest.raises(RecordingError, match=text):
        Checkpoints(rank, **{name: net})


def test_nothing_is_saved_unless_a_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    training = Training(1, None)
    training.losses(3, saved_at=3)

    assert training.checkpoints.step == 0
    assert not [*tmp_path.iterdir()]


@given(world_size=st.integers(1, 5), batch=st.integers(1, 7), more=st.integers(0, 60), start=st.integers(0, 40))
def test_a_training_that_goes_on_gets_the_batches_it_would_have_got(
    world_size: int, batch: int, more: int, start: int
) -> None:
    samples, rank = batch * world_size + more, rank_of(world_size - 1, world_size)
    whole = islice(sharded_batches(rank, samples=samples, batch=batch), start, start + 20)
    rest = islice(sharded_batches(rank, samples=samples, batch=batch, start=start), 20)

    assert [one.tolist() for one in rest] == [one.tolist() for one in whole]


@pytest.mark.parametrize(("samples", "batch", "steps"), [(20, 2, 3), (7, 2, 1), (6, 2, 1), (23, 3, 2)])
def test_steps_that_must_cost_the_same_leave_out_what_fills_none(samples: int, batch: int, steps: int) -> None:
    one, following = (
        [*islice(sharded_batches(rank_of(r, 3), samples=samples, batch=batch, drop_last=True), steps + 1)]
        for r in (0, 1)
    )

    assert {len(chosen) for chosen in one + following} == {batch}
    assert not {*torch.cat(one[:steps]).tolist()} & {*torch.cat(following[:steps]).tolist()}
    assert {*torch.cat(one[:steps]).tolist()} & {*torch.cat([one[steps], following[steps]]).tolist()}, "an epoch later"


@pytest.mark.parametrize(("top", "right"), [(1, [1, 0]), (5, [3, 2])])
def test_ranks_with_unequal_shares_count_what_is_right_of_theirs(top: int, right: list[int]) -> None:
    """Seven samples; classes 0 to 5 score less and less. Rank 0 has four: labels 0, 2, 4, 5; rank 1 has 1, 3, 5."""
    scores = torch.arange(6.0, 0.0, -1).expand(7, 6)
    labels = torch.tensor([0, 1, 2, 3, 4, 5, 5])
    counts: list[float] = []
    for number in range(2):
        rank = rank_of(number, 2)
        rank.sum_over_ranks = lambda own: counts.append(own) or own
        accuracy_over_ranks(rank, torch.nn.Identity(), scores, labels, top=top)

    assert counts == right


@pytest.mark.parametrize("seed", [-(2**63), -1, 0, 2**60, 2**64 - 1])
def test_every_seed_that_a_run_takes_makes_a_training(seed: int) -> None:
    rank = rank_of(0, 1)
    rank.seed = seed

    make_deterministic(seed)
    assert sorted(next(sharded_batches(rank, samples=4, batch=4)).tolist()) == [0, 1, 2, 3]


def test_a_torn_checkpoint_is_passed_over(tmp_path: Path) -> None:
    whole = Training(1, tmp_path).losses(5, saved_at=2)
    (tmp_path / "step4.pt").write_bytes((tmp_path / "step2.pt").read_bytes()[:-1])
    later = Training(1, tmp_path)

    assert later.checkpoints.step == 2
    assert later.losses(3) == whole[2:]


@pytest.mark.parametrize(("module", "may_train"), [("training", True), ("sweep", False)])
def test_a_body_of_a_training_may_step_an_optimizer_and_a_sweep_does_not(
    module: str, may_train: bool, tmp_path: Path
) -> None:
    (tmp_path / "body.py").write_text(f"from pytest_distbench.workloads import {module}\n")
    file = tmp_path / "body.py" if may_train else Path(sweep.__file__)
    work = Ranks(body=BodyReference(file=str(file), function="body"))

    assert bodies.may_train(make_plan(tmp_path, work=work)) == may_train
