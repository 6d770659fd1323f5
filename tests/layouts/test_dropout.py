"""Dropout is off where values are compared, and told apart by its masks, from whatever generator they are."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from pytest_distbench.layouts.compare import _draws_the_same
from pytest_distbench.layouts.dropout import masks_kept, without_dropout
from pytest_distbench.layouts.training import Draw

ONES = torch.ones(4, 64)


class Tracked(nn.Dropout):
    """Draws from a state of its own, and puts back the one of torch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            return super().forward(x)


def test_nothing_is_dropped_out_in_modules_and_functions() -> None:
    heads = torch.randn(1, 2, 8, 4)
    attended = functional.scaled_dot_product_attention(heads, heads, heads)
    before = torch.get_rng_state()
    with without_dropout():
        assert functional.dropout(ONES, 0.5).equal(ONES)
        assert nn.AlphaDropout(0.5)(ONES).equal(ONES)
        for args, options in [((None, 0.5), {}), ((), {"dropout_p": 0.5})]:
            found = functional.scaled_dot_product_attention(heads, heads, heads, *args, **options)
            torch.testing.assert_close(found, attended)
    assert torch.get_rng_state().equal(before)

    assert not functional.dropout(ONES, 0.5).equal(ONES)


@pytest.mark.parametrize("kind", [nn.Dropout, Tracked])
def test_a_mask_is_recorded_independently_of_its_samples(kind: type[nn.Dropout]) -> None:
    masks: list[str] = []
    with masks_kept(masks):
        for inputs in (ONES, torch.randn(4, 64).relu()):
            torch.manual_seed(7)
            dropped = kind(0.5)(inputs)
        kind(0.5)(ONES)
        kind(0.0)(ONES)
        kind(0.5).eval()(ONES)

    assert dropped.count_nonzero() < inputs.count_nonzero()
    assert len(masks) == 3
    assert masks[0] == masks[1]
    assert (masks[1] == masks[2]) == (kind is Tracked)


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (Draw(0, "x", True, ["m"]), Draw(0, "x", True, ["n"]), False),
        (Draw(0, "x", False, ["m"]), Draw(0, "y", False, ["m"]), True),
        (Draw(0, "x", True, []), Draw(0, "x", True, []), True),
        (Draw(0, "x", False, []), Draw(0, "y", False, []), None),
    ],
)
def test_masks_say_whether_ranks_draw_the_same_and_without_any_the_state_of_torch_does(
    a: Draw, b: Draw, same: bool | None
) -> None:
    assert _draws_the_same(a, b) is same
