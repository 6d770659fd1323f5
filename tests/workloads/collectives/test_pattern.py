"""A pattern gives what the tensor would that it stands for, part by part."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_distbench.workloads.collectives.pattern import Pattern

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
