"""Equal bytes have one digest, and what differs in one of them has another."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from pytest_distbench.worker import digests


@pytest.mark.parametrize(
    "other",
    [
        {"a": torch.tensor([1.0, 2.0]), "b": [1, None]},
        {"a": torch.tensor([1.0, 2.5], dtype=torch.bfloat16), "b": [1, None]},
        {"a": torch.tensor([[1.0, 2.5]]), "b": [1, None]},
        {"a": torch.tensor([1.0, 2.5]), "b": [1, 0]},
        {"a": torch.tensor([1.0, 2.5]), "b": [1, None], "c": b""},
        {"a": np.array([1.0, 2.5]), "b": [1, None]},
    ],
)
def test_a_state_that_differs_in_a_value_a_type_or_a_shape_has_another_digest(other: object) -> None:
    state = {"a": torch.tensor([1.0, 2.5]), "b": [1, None]}

    assert digests.of_state(state) == digests.of_state({"a": torch.tensor([0.0, 1.0, 2.5])[1:], "b": (1, None)})
    assert digests.of_state(other) not in ("", digests.of_state(state))


def test_what_has_no_bytes_to_compare_has_no_digest() -> None:
    assert digests.of_state({"a": object()}) == ""


@pytest.mark.parametrize("values", [torch.zeros(0), torch.tensor(3), torch.ones(2, 3).T, torch.tensor([True, False])])
def test_a_tensor_lies_in_memory_as_it_likes(values: torch.Tensor) -> None:
    assert digests.of_tensor(values) == digests.of_tensor(values.clone().contiguous())


def test_an_optimizer_is_told_by_slots_steps_and_rates() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    assert (digests.of_moments(optimizer), digests.steps_of(optimizer)) == ({}, "")
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()

    assert list(digests.of_moments(optimizer)) == ["exp_avg", "exp_avg_sq"]
    assert (digests.steps_of(optimizer), digests.rates_of(optimizer)) == ("1", [0.5])


def test_a_draw_changes_the_stream_it_was_taken_from() -> None:
    before = digests.of_random()
    random.random()
    after = digests.of_random()

    assert {stream for stream in before if before[stream] != after[stream]} == {"python"}


def test_the_options_of_all_groups_are_told_one_by_one_and_the_rate_is_none_of_them() -> None:
    groups = [{"params": [torch.nn.Parameter(torch.ones(1))], "betas": betas} for betas in ((0.9, 0.95), (0.8, 0.99))]
    told = digests.options_of(torch.optim.AdamW(groups, lr=0.5, weight_decay=0.1))

    assert [option for option in told if option.startswith("betas")] == ["betas (0.9, 0.95)", "betas (0.8, 0.99)"]
    assert told.count("weight_decay 0.1") == 2
    assert not any("0.5" in option for option in told)
