"""Float64 reference: every step of a training again, on one rank in float64, from the weights that the training has.

If a network has no float64, loss and gradients are computed in the highest :class:`Precision` that it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import nn

from pytest_distbench.errors import BodyError
from pytest_distbench.layouts.deviations import GRADIENT, LOSS, STATE, WEIGHTS, Quantity
from pytest_distbench.layouts.modules import Recorder, distance, multiple
from pytest_distbench.layouts.precision import Precision
from pytest_distbench.layouts.simulated import Simulation
from pytest_distbench.layouts.training import AVERAGE, Batch, Step, Tensors, TrainSpec, parameters_of, state_of


class Seen(NamedTuple):
    """How far a quantity is from its expected value; distances are relative to the norm of the expected value.

    Attributes:
        deviation: distance from the expected value.
        factor: factor by which the nearest multiple of the expected value differs from it.
        rest: distance from that multiple.
    """

    deviation: float
    factor: float
    rest: float


MISSING = Seen(math.inf, 0.0, math.inf)
NOT_FINITE = Seen(math.inf, 1.0, math.inf)
"""Distances of a quantity with NaN or infinity in it: a maximum over ranks keeps infinity, and may lose NaN."""


class StepReference:
    """Float64 reference of a pass, step by step, so that no rounding of a step is carried into the next.

    Expected weights before a step are those that the step before has left, or the initial ones; expected loss and
    gradients are those of the whole batch with the pass's weights in float64; expected weights after the update are
    made by the training's optimizer of the pass's own gradients: near zero, Adam turns a rounding into another sign.

    Attributes:
        seen: how far each quantity is off.
        losses: losses of the pass.
        expected_losses: losses of the float64 reference.
        has_gradient: whether an expected gradient is not 0.
        has_changed: whether the optimizer has changed a weight.
    """

    def __init__(
        self,
        training: TrainSpec,
        model: nn.Module,
        recorder: Recorder | None = None,
        precision: Precision | None = None,
        alone: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.seen: dict[Quantity, Seen] = {}
        self.losses: list[float] = []
        self.expected_losses: list[float] = []
        self.has_gradient = self.has_changed = False
        self._training = training
        self._model = model
        self._recorder = recorder
        self._precision = precision or Precision()
        self._alone = alone
        self._parameters = dict(parameters_of(model))
        self._optimizer = training.optimizer(list(model.parameters()))
        self._schedule = None if training.schedule is None else training.schedule(self._optimizer)
        self._left = {name: tensor.detach().clone() for name, tensor in state_of(model)}  # {}: this rank had none
        self._averages = {f"{AVERAGE}{name}": self._left[name] for name in self._parameters}  # as of those
        self._averages_before: Tensors = {}

    def see_gradients(
        self, step: Step, loss: float, weights: Tensors, gradients: Tensors, own: Set[str], lent: Set[str]
    ) -> None:
        if self._is_before_recorded(step):
            return
        for name, weight in weights.items():
            if self._left and name in own:
                self._compare(Quantity(step.number, WEIGHTS, name), weight, self._left.get(name))
        self._left = {}
        self._averages_before, self._averages = self._averages, {}
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(weights.get(name, parameter))
        with self._alone():
            self._compute(step, loss, weights, gradients, own, lent)

    def differentiate(self, batch: Batch, recorder: Recorder | None = None) -> torch.Tensor:
        """Return the loss of a batch, and leave its gradients in the parameters."""
        self._model.zero_grad()
        dtype = self._precision.dtype
        inputs, targets = (part.to("cpu", dtype if part.is_floating_point() else None) for part in batch)
        watching = nullcontext() if recorder is None else recorder.watching(self._model)
        with self._precision.computing(self._model), watching:
            loss = self._training.loss(self._model(inputs), targets)
            loss.backward()
        return loss.detach().double()

    def _compute(
        self, step: Step, loss: float, weights: Tensors, gradients: Tensors, own: Set[str], lent: Set[str]
    ) -> None:
        before = torch.get_rng_state()
        recorder = self._recorder if self._recorder is not None and self._recorder.step == step.number else None
        expected = self.differentiate(step.batch, recorder)
        if not torch.equal(before, torch.get_rng_state()):
            raise BodyError(
                "the network or its loss draws random numbers, so no two passes are equal: wanted dropout of "
                "torch.nn, by its modules or functions, which is off where values are compared"
            )
        self.losses.append(loss)
        self.expected_losses.append(float(expected))
        self._compare(Quantity(step.number, LOSS), torch.tensor(loss).double(), expected)
        for name, parameter in self._parameters.items():
            is_used = parameter.grad is not None
            right = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            found = gradients.get(name, None if is_used else right)  # else the layout has none, either, or zeros
            self.has_gradient |= bool(right.any())
            if found is not None and name in own and name not in lent:
                self._compare(Quantity(step.number, GRADIENT, name), found, right)
            elif name in weights and found is None:
                self.seen[Quantity(step.number, GRADIENT, name)] = MISSING
        self._update(gradients)
        self.has_changed |= any(not torch.equal(self._parameters[name], weight) for name, weight in weights.items())

    def see_state(self, step: Step, state: Tensors) -> None:
        expected = {name: tensor.detach() for name, tensor in state_of(self._model)}
        self._averages = {name: tensor for name, tensor in state.items() if name.startswith(AVERAGE)}
        if (average := self._training.average) is not None:
            for name, so_far in self._averages_before.items():
                weight = name.removeprefix(AVERAGE)
                expected[name] = average(so_far, state.get(weight, expected[weight]))
        for name, tensor in state.items() if not self._is_before_recorded(step) else ():
            if (
                name in expected or name not in self._averages
            ):  # of an average that this rank did not have nothing is known
                self._compare(Quantity(step.number, STATE, name), tensor, expected.get(name))
        self._left = expected | state
        with torch.no_grad():
            for name, buffer in self._model.named_buffers():
                buffer.copy_(state.get(name, buffer))

    def _is_before_recorded(self, step: Step) -> bool:
        return self._recorder is not None and step.number < self._recorder.step

    def _update(self, gradients: Tensors) -> None:
        for name, parameter in self._parameters.items():
            parameter.grad = gradients.get(name)
        if (most := self._training.max_norm) is not None:
            own = [p.grad for p in self._model.parameters() if p.grad is not None]
            norm = math.sqrt(math.fsum(float(gradient.square().sum()) for gradient in own))
            for gradient in own if norm > most else ():
                gradient *= most / norm
        self._optimizer.step()
        if self._schedule is not None:
            self._schedule.step()

    def _compare(self, quantity: Quantity, found: torch.Tensor, expected: torch.Tensor | None) -> None:
        if expected is None:
            raise BodyError(
                f"the layout has {quantity.name}, which the network without a layout has not: modules keep their "
                f"names. It has {', '.join(sorted(self._parameters))}"
            )
        if expected.shape != found.shape:
            raise BodyError(
                f"{quantity.name} is {tuple(found.shape)} under the layout, and {tuple(expected.shape)} without it: "
                "wanted the whole of it, or a DTensor"
            )
        deviation = 0.0 if torch.equal(found, expected) else distance(found, expected, expected)
        factor, rest = multiple(found, expected) if deviation else (1.0, 0.0)
        self.seen[quantity] = Seen(deviation, factor, rest) if math.isfinite(deviation) else NOT_FINITE


class EachRank:
    """Float64 references of all simulated ranks, or of the first of them, as one."""

    def __init__(self, simulation: Simulation, references: Sequence[StepReference]) -> None:
        self._simulation = simulation
        self._of_ranks = references

    def see_gradients(
        self, step: Step, loss: float, weights: Tensors, gradients: Tensors, own: Set[str], lent: Set[str]
    ) -> None:
        with self._simulation.paused():
            split = zip(self._of_ranks, self._split(weights), self._split(gradients), strict=False)
            for reference, its_weights, its_gradients in split:
                reference.see_gradients(step, loss, its_weights, its_gradients, own, lent)

    def see_state(self, step: Step, state: Tensors) -> None:
        with self._simulation.paused():
            for reference, its_state in zip(self._of_ranks, self._split(state), strict=False):
                reference.see_state(step, its_state)

    def _split(self, tensors: Tensors) -> Iterator[Tensors]:
        values = {name: self._simulation.values(tensor) for name, tensor in tensors.items()}
        for i in range(self._simulation.ranks):
            yield {name: each[i] for name, each in values.items()}
