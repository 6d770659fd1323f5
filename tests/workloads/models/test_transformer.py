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


def test_layers_that_add_to_a_shortcut_begin_smaller() -> None:
    torch.manual_seed(0)
    model = Transformer(SMALL)
    first = {name: p.detach() for name, p in model.named_parameters() if name.startswith("blocks.0.")}
    deviations = {name[9:-7]: float(p.std()) for name, p in first.items() if p.dim() == 2}

    assert deviations == pytest.approx(
        {**dict.fromkeys(["query", "key", "value", "up"], 0.02), **dict.fromkeys(["out", "down"], 0.02 / 8**0.5)},
        rel=0.02,
    )
    assert {name: float(p.mean()) for name, p in first.items() if p.dim() == 1} == {
        **{f"blocks.0.{layer}.bias": 0 for layer in ("norm1", "norm2", "up", "down")},
        **{f"blocks.0.{layer}.weight": 1 for layer in ("norm1", "norm2")},
    }
