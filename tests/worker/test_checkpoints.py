"""What of a training survives a restart: checkpoints, and the order of samples."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from pytest_distbench.errors import RecordingError
from pytest_distbench.worker.checkpoints import find_good, load, next_count, permutation, save, share


def test_no_rank_is_ever_without_a_sample_and_every_sample_is_given_once() -> None:
    """1000 epochs in which the ranks change after every step."""
    chance = random.Random(0)
    for _ in range(1000):
        most = chance.randint(1, 5)
        samples = chance.randint(most, 60)
        batch = chance.randint(1, 7)
        order = permutation(samples, seed=0, epoch=0)
        given: list[int] = []
        while (left := samples - len(given)) > 0:
            ranks = chance.randint(1, most)
            count = next_count(left, batch=batch, world_size=ranks, most=most)
            chosen = order[len(given) : len(given) + count]
            shares = [share(chosen, rank=rank, world_size=ranks).tolist() for rank in range(ranks)]
            assert min(map(len, shares)) >= 1
            assert max(map(len, shares)) - min(map(len, shares)) <= 1
            given += [sample for mine in shares for sample in mine]

        assert sorted(given) == list(range(samples))


@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (3, 7), (-3, 7)])
def test_the_order_of_an_epoch_is_that_of_its_seed(seed: int, epoch: int) -> None:
    own = torch.Generator().manual_seed(1000 * seed + epoch)

    assert permutation(9, seed=seed, epoch=epoch).tolist() == torch.randperm(9, generator=own).tolist()


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: b"", lambda data: data[:40] + b"x" + data[41:]]
)
def test_a_torn_checkpoint_has_a_good_one_behind_it(tmp_path: Path, damage: object) -> None:
    save(tmp_path, 20, {"a": 1})
    save(tmp_path, 100, {"a": 2})
    newest = tmp_path / "step100.pt"
    newest.write_bytes(damage(newest.read_bytes()))  # type: ignore[operator]

    assert find_good(tmp_path) == (20, ["step100.pt"])
    with pytest.raises(RecordingError, match=r"step100\.pt is gone or not whole"):
        load(tmp_path, 100)


def test_what_was_saved_comes_back_and_the_newest_three_are_kept_by_their_step(tmp_path: Path) -> None:
    assert find_good(tmp_path) == (0, [])

    save(tmp_path, 20, {"model": {"w": torch.arange(3)}, "counters": {"step": 20}})

    assert find_good(tmp_path) == (20, [])
    assert load(tmp_path, 20)["model"]["w"].tolist() == [0, 1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["step20.pt"]

    for step in (5, 20, 100, 1000):
        save(tmp_path, step, {"a": step})

    assert sorted(path.name for path in tmp_path.iterdir()) == ["step100.pt", "step1000.pt", "step20.pt"]
