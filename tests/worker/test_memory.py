"""What optimizers remember when a generation begins: counted by parameters, once."""

from __future__ import annotations

import gc

import pytest
import torch

from pytest_distbench.worker.memory import OptimizerMemory, count_states


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize(("momentum", "states"), [(0.0, 0), (0.9, 2)])
def test_momentum_is_remembered_and_without_it_there_is_nothing_to_lose(momentum: float, states: int) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    memory = OptimizerMemory()
    step(model, optimizer)

    assert memory.after_step() == (0, states)
    assert memory.after_step() is None
    assert memory.param_groups[0]["lr"] == 0.1


def test_an_optimizer_that_got_its_state_back_begins_with_it() -> None:
    model = torch.nn.Linear(2, 1)
    old = torch.optim.Adam(model.parameters())
    step(model, old)
    new = torch.optim.Adam(model.parameters())
    new.load_state_dict(old.state_dict())
    memory = OptimizerMemory()
    step(model, new)

    assert memory.after_step() == (2, 2)


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
