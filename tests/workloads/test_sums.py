"""Sums over ranks are checked element by element. With one rank the sum is what was sent."""

from __future__ import annotations

import pytest
import torch
from support.ranks import make_rank as make_fake_rank

from pytest_distbench.worker.context import RankContext
from pytest_distbench.workloads import sums
from pytest_distbench.workloads.sums import count_wrong_sums


def make_rank() -> RankContext:
    """A rank whose backend would move data, if there were others."""
    rank = make_fake_rank()
    rank.backend = "gloo"
    return rank


def test_right_sums_have_no_wrong_element_and_leave_zeros() -> None:
    message = torch.full((1000,), 7.0)

    assert count_wrong_sums(make_rank(), message, lambda: None) == (0, "")
    assert not message.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_a_wrong_last_element_is_found_and_told(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr(sums, "_CHUNK_ELEMENTS", 64)
    message = torch.zeros(130, dtype=dtype)

    def reduce() -> None:
        message[-1] += 1

    assert count_wrong_sums(make_rank(), message, reduce) == (1, "; on rank 0 element 129 is 130, expected 129")


def test_where_no_data_is_moved_nothing_is_wrong() -> None:
    assert count_wrong_sums(make_fake_rank(), torch.zeros(8), lambda: 1 / 0) == (0, "")
