"""What a training holds: digests of its state, random streams, optimizers' memory, and what was not handed over."""

from __future__ import annotations

import gc
import io
import random
from typing import Any

import numpy as np
import pytest
import torch

from pytest_distbench.elastic.worker import ledger as digests
from pytest_distbench.elastic.worker.ledger import OptimizerMemory, RandomStreams, count_states, left_out


def draw(generator: torch.Generator) -> list[float]:
    return [float(torch.rand(1)), random.random(), float(np.random.rand()), float(torch.rand(1, generator=generator))]


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


def test_a_state_has_a_digest_where_it_has_bytes_and_a_draw_changes_it() -> None:
    assert digests.of_state({"a": object()}) == ""

    before = digests.of_random()
    random.random()
    after = digests.of_random()
    assert {stream for stream in before if before[stream] != after[stream]} == {"python"}

    generator = torch.Generator().manual_seed(3)
    streams = RandomStreams({"loader": generator})
    file = io.BytesIO()
    torch.save(streams.state_dict(), file)
    expected = draw(generator)
    draw(generator)
    file.seek(0)
    streams.load_state_dict(torch.load(file, weights_only=True))
    assert draw(generator) == expected


@pytest.mark.parametrize("values", [torch.zeros(0), torch.tensor(3), torch.ones(2, 3).T, torch.tensor([True, False])])
def test_a_tensor_lies_in_memory_as_it_likes(values: torch.Tensor) -> None:
    assert digests.of_tensor(values) == digests.of_tensor(values.clone().contiguous())


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def test_an_optimizer_that_got_its_state_back_begins_with_it() -> None:
    model = torch.nn.Linear(2, 1)
    old = torch.optim.Adam(model.parameters())
    step(model, old)
    new = torch.optim.Adam(model.parameters())
    new.load_state_dict(old.state_dict())
    memory = OptimizerMemory()
    step(model, new)

    assert memory.after_step() == (2, 2)


@pytest.mark.parametrize(
    ("steps", "drops", "found"),
    [
        ([1, 1], True, [(1, False), (1, False)]),
        ([0, 1], False, [(0, False), (1, False)]),  # accumulated
        ([0, 1], True, [(0, False), (1, True)]),
        ([0, 0, 1], True, [(0, False), (0, True), (1, True)]),
        ([2, 0], True, [(2, False), (0, False)]),
    ],
)
def test_steps_of_a_batch_are_counted_and_gradients_that_were_given_up(
    steps: list[int], drops: bool, found: list[tuple[int, bool]]
) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memory = OptimizerMemory()
    step(model, optimizer)
    memory.take_updates()
    seen = []
    stepped = True
    for count in steps:
        if drops or stepped:
            optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        for _ in range(count):
            optimizer.step()
        stepped = count > 0
        seen.append(memory.take_updates())

    assert seen == found


def test_the_digest_of_an_optimizer_has_slots_steps_and_rates() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    assert (digests.of_moments(optimizer), digests.steps_of(optimizer)) == ({}, "")
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()

    assert list(digests.of_moments(optimizer)) == ["exp_avg", "exp_avg_sq"]
    assert (digests.steps_of(optimizer), digests.rates_of(optimizer)) == ("1", [0.5])


def test_options_are_listed_for_all_groups_without_the_learning_rate() -> None:
    groups = [{"params": [torch.nn.Parameter(torch.ones(1))], "betas": betas} for betas in ((0.9, 0.95), (0.8, 0.99))]
    told = digests.options_of(torch.optim.AdamW(groups, lr=0.5, weight_decay=0.1))

    assert [option for option in told if option.startswith("betas")] == ["betas (0.9, 0.95)", "betas (0.8, 0.99)"]
    assert told.count("weight_decay 0.1") == 2
    assert not any("0.5" in option for option in told)


@pytest.mark.parametrize(("momentum", "states"), [(0.0, 0), (0.9, 2)])
def test_momentum_is_remembered_and_without_it_there_is_nothing_to_lose(momentum: float, states: int) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    memory = OptimizerMemory()
    step(model, optimizer)

    assert memory.after_step() == (0, states)
    assert memory.after_step() is None
    assert memory.param_groups[0]["lr"] == 0.1


def test_a_step_without_an_optimizer_is_not_the_one_that_counts_and_nothing_is_kept_alive() -> None:
    memory = OptimizerMemory()

    assert memory.after_step() is None
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step(model, optimizer)
    assert memory.after_step() == (0, 0)
    del optimizer
    gc.collect()
    assert memory.param_groups == []
    assert count_states(torch.optim.SGD(model.parameters(), lr=0.1)) == 0


class Wrapper:
    """A part of the body's own, which keeps what it holds."""

    def __init__(self, held: object) -> None:
        self.held = held


MODEL = torch.nn.Linear(2, 1)
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=0.1)
SCHEDULED = torch.optim.SGD(MODEL.parameters(), lr=0.1)
SCHEDULE = torch.optim.lr_scheduler.StepLR(SCHEDULED, 1)


def of(optimizer: torch.optim.Optimizer, **more: object) -> dict[str, object]:
    return {"model": MODEL, "optimizer": optimizer, **more}


@pytest.mark.parametrize(
    ("parts", "optimizer", "more", "told"),
    [
        (of(OPTIMIZER), OPTIMIZER, {}, []),
        ({"model": Wrapper(MODEL), "optimizer": Wrapper(OPTIMIZER)}, OPTIMIZER, {}, []),
        ({"model": MODEL}, OPTIMIZER, {}, ["the optimizer SGD, which steps: rank.training(optimizer=...)"]),
        (
            of(OPTIMIZER, model=torch.nn.Linear(2, 1)),
            OPTIMIZER,
            {},
            ["2 of the 2 tensors that are trained: rank.training(model=...)"],
        ),
        (of(SCHEDULED), SCHEDULED, {}, ["the schedule of the learning rate: rank.training(schedule=...)"]),
        (of(SCHEDULED, schedule=SCHEDULE), SCHEDULED, {}, []),
        (
            of(OPTIMIZER),
            OPTIMIZER,
            {"drawn_from": ["torch"], "draws_samples": True},
            [
                "random streams (torch): rank.training(random=rank.random_streams())",
                "what chooses the samples: rank.training(sampler=...), which has state_dict and load_state_dict",
            ],
        ),
        (of(OPTIMIZER, loader=Wrapper(0)), OPTIMIZER, {"draws_samples": True}, []),
    ],
)
def test_a_part_that_was_not_handed_over_is_named_with_the_call_that_keeps_it(
    parts: dict[str, Any], optimizer: torch.optim.Optimizer, more: dict[str, Any], told: list[str]
) -> None:
    assert left_out(parts, [optimizer], **{"drawn_from": [], "draws_samples": False, **more}) == told
