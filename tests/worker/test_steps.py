"""Beginnings of training steps: each case is a training of five iterations, whichever optimizers step."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from support.fake_world import fake_rank
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR

from pytest_distbench.records.iteration import Fingerprint
from pytest_distbench.worker.script import watched_steps

SGD = torch.optim.SGD
ITERATIONS = 5


class Training:
    """A net of 20 B, how it computes its gradients, and a second net that learns against it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net, self.other = DistributedDataParallel(nn.Linear(4, 1)), nn.Linear(4, 1)
        self.iteration = 0

    def backward(self, *, net: nn.Module | None = None) -> torch.Tensor:
        net = net or self.net
        net.zero_grad()
        loss = net(torch.ones(2, 4)).square().mean()
        loss.backward()
        return loss

    def groups(self) -> list[dict[str, object]]:
        return [{"params": [parameter]} for parameter in self.net.parameters()]


Step = Callable[[], object]
Case = Callable[[Training], Step]
"""What makes a training's optimizers, and gives one iteration of it."""


def once(training: Training) -> Step:
    optimizer = SGD(training.net.parameters(), lr=0.1)
    return lambda: (training.backward(), optimizer.step())


def per_group(training: Training) -> Step:
    """Steps as DeepSpeed's ZeRO 1 and 2 take them."""
    optimizer = SGD(training.groups(), lr=0.1)
    groups = list(optimizer.param_groups)

    def step() -> None:
        training.backward()
        for group in groups:
            optimizer.param_groups = [group]
            optimizer.step()
        optimizer.param_groups = groups

    return step


def per_part_of_a_group(training: Training) -> Step:
    """Steps as DeepSpeed's ZeRO 3 takes them: the groups stay, and each step finds other parameters in one of them."""
    optimizer = SGD(training.groups(), lr=0.1)
    parameters = list(training.net.parameters())

    def step() -> None:
        training.backward()
        for group, parameter in zip(optimizer.param_groups, parameters, strict=True):
            for each in optimizer.param_groups:
                each["params"] = [parameter] if each is group else []
            optimizer.step()

    return step


def by_gradients(training: Training) -> Step:
    """Each step finds the gradients of some parameters alone."""
    optimizer = SGD(training.net.parameters(), lr=0.1)

    def step() -> None:
        training.backward()
        gradients = [parameter.grad for parameter in training.net.parameters()]
        for chosen in range(len(gradients)):
            for i, parameter in enumerate(training.net.parameters()):
                parameter.grad = gradients[i] if i == chosen else None
            optimizer.step()

    return step


def twice(training: Training) -> Step:
    optimizer = SGD(training.net.parameters(), lr=0.1)
    return lambda: (training.backward(), optimizer.step(), optimizer.step())


class Overriding(SGD):
    """Has a step of its own, which calls that of its base."""

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        return super().step(closure)


def overridden(training: Training) -> Step:
    SGD([nn.Parameter(torch.ones(1))])  # torch calls hooks of the base class's step when somebody has made one of it
    optimizer = Overriding(training.net.parameters(), lr=0.1)
    return lambda: (training.backward(), optimizer.step())


def overridden_with_closure(training: Training) -> Step:
    SGD([nn.Parameter(torch.ones(1))])
    optimizer = Overriding(training.net.parameters(), lr=0.1)
    return lambda: optimizer.step(lambda: training.backward().item())


def zero_redundancy(training: Training) -> Step:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # warns at its import

    optimizer = ZeroRedundancyOptimizer(training.net.parameters(), SGD, lr=0.1)
    return lambda: (training.backward(), optimizer.step())


def one_per_parameter(training: Training) -> Step:
    optimizers = [SGD([parameter], lr=0.1) for parameter in training.net.parameters()]
    return lambda: (training.backward(), [optimizer.step() for optimizer in optimizers])


def in_the_backward_pass(training: Training) -> Step:
    net = copy.deepcopy(training.net.module)
    for parameter in net.parameters():
        optimizer = SGD([parameter], lr=0.1)
        parameter.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())
    return lambda: (training.backward(net=net), dist.all_reduce(torch.ones(5)))


def adversarial(training: Training) -> Step:
    """A backward pass before each of two steps."""
    first, second = SGD(training.net.parameters(), lr=0.1), SGD(training.other.parameters(), lr=0.1)
    return lambda: (training.backward(), first.step(), training.backward(net=training.other), second.step())


def adversarial_at_once(training: Training) -> Step:
    first, second = SGD(training.net.parameters(), lr=0.1), SGD(training.other.parameters(), lr=0.1)
    return lambda: (training.backward(), training.backward(net=training.other), first.step(), second.step())


def accumulated(training: Training) -> Step:
    """Several backward passes before a step; the first is not reduced."""
    optimizer = SGD(training.net.parameters(), lr=0.1)

    def step() -> None:
        with training.net.no_sync():
            training.backward()
        training.net(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    return step


def in_the_step(training: Training) -> Step:
    """Steps as Lightning takes them: a closure has the forward and the backward pass."""
    optimizer = SGD(training.net.parameters(), lr=0.1)
    return lambda: optimizer.step(lambda: training.backward().item())


def line_search(training: Training) -> Step:
    """Two evaluations of the closure in a step."""
    optimizer = torch.optim.LBFGS(training.net.parameters(), lr=1e-6, max_iter=2, max_eval=2, tolerance_grad=0.0)
    optimizer.defaults["tolerance_change"] = optimizer.param_groups[0]["tolerance_change"] = 0.0
    return lambda: optimizer.step(lambda: training.backward())


def scheduled(training: Training) -> Step:
    optimizer = SGD(training.net.parameters(), lr=0.1)
    schedule = LambdaLR(optimizer, lambda _: 1.0)
    return lambda: (training.backward(), optimizer.step(), schedule.step())


def by_hand(training: Training) -> Step:
    """Gradients that no backward pass of this thread has computed."""
    optimizer = SGD(training.net.parameters(), lr=0.1)

    def step() -> None:
        for parameter in training.net.parameters():
            parameter.grad = torch.ones_like(parameter)
            dist.all_reduce(parameter.grad)
        optimizer.step()

    return step


def by_hand_in_place(training: Training) -> Step:
    optimizer = SGD(training.net.parameters(), lr=0.1)
    for parameter in training.net.parameters():
        parameter.grad = torch.ones_like(parameter)

    def step() -> None:
        for parameter in training.net.parameters():
            assert parameter.grad is not None
            parameter.grad.fill_(1.0)
            dist.all_reduce(parameter.grad)
        optimizer.step()

    return step


def in_inference_mode(training: Training) -> Step:
    optimizer = SGD(training.net.parameters(), lr=0.1)

    def step() -> None:
        with torch.inference_mode():
            gradients = [torch.ones_like(parameter) for parameter in training.net.parameters()]
        for parameter, gradient in zip(training.net.parameters(), gradients, strict=True):
            parameter.grad = gradient
        dist.all_reduce(torch.ones(5))
        optimizer.step()

    return step


def in_turn(training: Training) -> Step:
    """A backward pass before each step, of one group in turn: these are several training steps."""
    optimizer = SGD(training.groups(), lr=0.1)
    groups = list(optimizer.param_groups)

    def step() -> None:
        optimizer.param_groups = [groups[training.iteration % 2]]
        training.iteration += 1
        training.backward()
        optimizer.step()

    return step


def thawing(training: Training) -> Step:
    """A training in which another parameter is the first to be trained from the third step on."""
    optimizer = SGD([training.net.module.bias], lr=0.1)

    def step() -> None:
        training.iteration += 1
        if training.iteration == 3:
            optimizer.param_groups[0]["params"].insert(0, training.net.module.weight)
        training.backward()
        optimizer.step()

    return step


def failing(training: Training) -> Step:
    """Every other step raises, and the training goes on."""
    SGD([nn.Parameter(torch.ones(1))])
    optimizer = Overriding(training.net.parameters(), lr=0.1)

    def step() -> None:
        training.iteration += 1
        training.backward()
        with contextlib.suppress(ZeroDivisionError):
            optimizer.step(None if training.iteration % 2 else lambda: 1 / 0)

    return step


def repeated(training: Training) -> Step:
    """A step that raises, and is tried again."""
    optimizer = SGD(training.net.parameters(), lr=0.1)

    def step() -> None:
        training.iteration += 1
        training.backward()
        if training.iteration == 4:
            with contextlib.suppress(ZeroDivisionError):
                optimizer.step(lambda: 1 / 0)
        optimizer.step()

    return step


def scaled(training: Training) -> Step:
    """The scaler leaves out the first of the optimizer's steps: gradients overflow."""
    optimizer = SGD(training.net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)

    def step() -> None:
        training.iteration += 1
        training.net.zero_grad()
        loss = training.net(torch.ones(2, 4)).sum() * (torch.inf if training.iteration == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def trace(case: Case, *, iterations: int = ITERATIONS) -> Fingerprint:
    with fake_rank(world_size=2) as rank:
        with watched_steps(rank.watch):
            step = case(Training())
            for _ in range(iterations):
                step()
        return rank.watch.found["optimizer_step"]


GRADIENTS = [("all_reduce", 20)]
EACH = [("all_reduce", 16), ("all_reduce", 4)]

CASES: dict[Case, tuple[int, int, list[tuple[str, int]]]] = {
    once: (1, 20, GRADIENTS),
    per_group: (2, 20, GRADIENTS),
    per_part_of_a_group: (2, 20, GRADIENTS),
    by_gradients: (2, 20, GRADIENTS),
    twice: (2, 20, GRADIENTS),
    overridden: (2, 20, GRADIENTS),
    overridden_with_closure: (2, 20, GRADIENTS),
    zero_redundancy: (2, 36, [("broadcast", 16), ("broadcast", 4), *GRADIENTS]),
    one_per_parameter: (2, 20, GRADIENTS),
    in_the_backward_pass: (2, 20, GRADIENTS),
    adversarial: (2, 40, GRADIENTS),
    adversarial_at_once: (2, 40, GRADIENTS),
    accumulated: (1, 20, GRADIENTS),
    in_the_step: (1, 20, GRADIENTS),
    line_search: (1, 20, GRADIENTS * 2),
    scheduled: (1, 20, GRADIENTS),
    by_hand: (1, 20, EACH),
    by_hand_in_place: (1, 20, EACH),
    in_inference_mode: (1, 20, GRADIENTS),
    in_turn: (1, 20, GRADIENTS),
    thawing: (1, 20, GRADIENTS),
    failing: (2, 20, GRADIENTS),
    repeated: (1, 20, GRADIENTS),
    scaled: (1, 20, GRADIENTS),
}
"""Steps of optimizers, bytes that they train (of an optimizer inside of another twice), and collectives of a step."""


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_training_step_is_an_iteration_whoever_steps_in_it(case: Case) -> None:
    steps, trained_bytes, sent = CASES[case]
    found = trace(case)

    assert [(c.op, c.message_bytes) for c in found.collectives["0"] for _ in range(c.count)] == sent
    assert (found.totals["optimizer_steps"], found.facts["parameter_bytes"]["0"]) == (steps, trained_bytes)
    assert found.course["0"].steps == ITERATIONS - (case is scaled)


def test_an_optimizer_that_a_training_lets_go_begins_no_more_steps() -> None:
    with fake_rank(world_size=2) as rank:
        with watched_steps(rank.watch):
            for _ in range(2):
                step = once(Training())
                step()
                step()
        assert set(rank.watch.found) == {"script"}
