"""The two sizes of the transformer."""

from __future__ import annotations

import pytest
import torch

from pytest_distbench.workloads.models import count
from pytest_distbench.workloads.models.transformer import LARGE, SMALL, Size, Transformer


@pytest.mark.parametrize(("size", "parameters", "tensors"), [(LARGE, 110_199_808, 147), (SMALL, 807_488, 51)])
def test_the_large_one_is_as_gpt_2s_smallest(size: Size, parameters: int, tensors: int) -> None:
    with torch.device("meta"):
        assert count(Transformer(size)) == (parameters, tensors)


def test_no_token_sees_a_later_one() -> None:
    torch.manual_seed(0)
    model, tokens = Transformer(SMALL), torch.zeros(1, 8, dtype=torch.int64)
    other = tokens.clone()
    other[0, 5:] = 1
    with torch.no_grad():
        before, after = model(tokens), model(other)

    assert torch.equal(before[0, :5], after[0, :5])
    assert not torch.equal(before[0, 5:], after[0, 5:])
