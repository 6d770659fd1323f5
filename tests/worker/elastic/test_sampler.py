"""Every sample once, however often the number of ranks changes."""

from __future__ import annotations

import random

import pytest
import torch

from pytest_distbench.worker.elastic.sampler import next_count, permutation, share


def test_the_order_of_an_epoch_is_its_own_and_the_same_in_every_rank() -> None:
    first, again, second = (permutation(50, seed=1, epoch=epoch).tolist() for epoch in (0, 0, 1))

    assert first == again != second
    assert sorted(second) == list(range(50))


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
