"""What ranks send in the exact check: whole numbers every dtype holds, also reduced, and parts of long rows of them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_distbench.workloads.collectives.inputs import Inputs, Pattern
from pytest_distbench.workloads.dtypes import DTYPES


def inputs(count: int, *, world_size: int, **options: object) -> Inputs:
    return Inputs(count, rank=0, world_size=world_size, device=torch.device("cpu"), **options)  # type: ignore[arg-type]


def test_element_i_of_rank_r_is_i_plus_7_r_in_a_period() -> None:
    sent = inputs(130, world_size=2).of(1)

    assert sent.make(0, 3, torch.float32).tolist() == [7, 8, 9]
    assert sent.make(118, 122, torch.float32).tolist() == [125, 126, 0, 1]


def test_the_period_is_odd_so_that_pieces_of_a_message_cannot_change_places_unseen() -> None:
    sent = inputs(1 << 12, world_size=2).of(0)

    assert sent.make(0, 1 << 10, torch.float32).tolist() != sent.make(1 << 10, 1 << 11, torch.float32).tolist()


def test_the_parts_of_a_message_differ() -> None:
    first, second = (inputs(9, world_size=2, part=part).of(0).make(0, 9, torch.int64).tolist() for part in (0, 1))

    assert first != second


def test_those_of_all_ranks_lie_one_after_another() -> None:
    assert inputs(3, world_size=2).of_all().make(0, 6, torch.int64).tolist() == [0, 1, 2, 7, 8, 9]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_a_sum_over_ranks_is_exact_in_every_dtype(dtype: str, world_size: int) -> None:
    made = inputs(300, world_size=world_size, dtype=dtype)
    rows = torch.stack([made.of(rank).make(0, 300, torch.int64) for rank in range(world_size)])
    found = made.reduced().make(0, 300, getattr(torch, dtype))
    wanted = rows.sum(0).clamp(max=1) if dtype == "bool" else rows.sum(0)

    assert (found.real if found.is_complex() else found).to(torch.int64).tolist() == wanted.tolist()


tiles = st.lists(st.integers(0, 200), min_size=1, max_size=5).map(torch.tensor)
whole = st.lists(st.tuples(tiles, st.integers(0, 12)), min_size=1, max_size=4)


def made(pieces: list[tuple[torch.Tensor, int]]) -> tuple[Pattern, torch.Tensor]:
    rows = [tile.repeat(-(-count // len(tile)))[:count] for tile, count in pieces]
    return Pattern.join(Pattern.repeat(tile, count) for tile, count in pieces), torch.cat(rows).float()


@given(whole, st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_any_part_of_any_slice_is_that_of_the_tensor(
    pieces: list[tuple[torch.Tensor, int]], first: int, last: int, begin: int, end: int
) -> None:
    pattern, tensor = made(pieces)
    pattern, tensor = pattern[first:last], tensor[first:last]

    assert len(pattern) == len(tensor)
    begin, end = sorted((min(begin, len(tensor)), min(end, len(tensor))))
    assert pattern.make(begin, end, torch.float32).tolist() == tensor[begin:end].tolist()


def test_an_eighth_of_a_terabyte_takes_no_memory() -> None:
    pattern = Pattern.repeat(torch.arange(3), 2**35)

    assert pattern[2**34 :].make(0, 3, torch.bfloat16).tolist() == [(2**34 + i) % 3 for i in range(3)]


def test_a_step_is_refused() -> None:
    with pytest.raises(ValueError, match="cut without a step, found 2"):
        Pattern.repeat(torch.arange(3), 9)[::2]
