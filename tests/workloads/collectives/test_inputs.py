"""What ranks send in the exact check: whole numbers every dtype holds, also summed."""

from __future__ import annotations

import pytest
import torch

from pytest_distbench.workloads.collectives.inputs import Inputs
from pytest_distbench.workloads.dtypes import ITEM_BYTES


def inputs(count: int, *, world_size: int) -> Inputs:
    return Inputs(count, rank=0, world_size=world_size, device=torch.device("cpu"))


def test_element_i_of_rank_r_is_i_plus_7_r_in_a_period() -> None:
    sent = inputs(130, world_size=2).of(1)

    assert sent.make(0, 3, torch.float32).tolist() == [7, 8, 9]
    assert sent.make(119, 123, torch.float32).tolist() == [126, 127, 0, 1]


def test_those_of_all_ranks_lie_one_after_another() -> None:
    assert inputs(3, world_size=2).of_all().make(0, 6, torch.int64).tolist() == [0, 1, 2, 7, 8, 9]


@pytest.mark.parametrize("dtype", ITEM_BYTES)
@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_a_sum_over_ranks_is_exact_in_every_dtype(dtype: str, world_size: int) -> None:
    made = inputs(300, world_size=world_size)
    rows = [made.of(rank).make(0, 300, torch.int64) for rank in range(world_size)]
    found = made.combine(lambda tiles: tiles.sum(0)).make(0, 300, getattr(torch, dtype))

    assert found.tolist() == torch.stack(rows).sum(0).tolist()
