"""A training that was saved goes on bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.ranks import make_rank
from torch.optim.lr_scheduler import StepLR

from pytest_distbench.errors import RecordingError
from pytest_distbench.worker.elastic import checkpoints
from pytest_distbench.workloads.checkpoints import Checkpoints


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


def test_a_torn_checkpoint_is_passed_over(tmp_path: Path) -> None:
    whole = Training(1, tmp_path).losses(5, saved_at=2)
    (tmp_path / "step4.pt").write_bytes((tmp_path / "step2.pt").read_bytes()[:-1])
    later = Training(1, tmp_path)

    assert later.checkpoints.step == 2
    assert later.losses(3) == whole[2:]


def test_nothing_is_saved_unless_a_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    training = Training(1, None)
    training.losses(3, saved_at=3)

    assert training.checkpoints.step == 0
    assert not [*tmp_path.iterdir()]


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

    with pytest.raises(
        RecordingError, match=rf"a training of {ranks} ranks with {name}, found one of 1 ranks with mod"
    ):
        Checkpoints(rank, **{name: net})


def test_a_part_without_a_state_is_refused() -> None:
    with pytest.raises(RecordingError, match=r"wanted rate to have state_dict and load_state_dict, found 0.1"):
        Checkpoints(make_rank(), rate=0.1)  # type: ignore[arg-type]
