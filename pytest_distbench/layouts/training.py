"""TrainSpec: a training without a layout. Pass: one run of it under a layout, whose steps are compared."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from pytest_distbench.errors import BodyError
from pytest_distbench.layouts import GRADIENTS, PARAMETERS
from pytest_distbench.layouts.dropout import masks_kept
from pytest_distbench.layouts.modules import WRAPPERS, Recorder, copied, exchanged, whole

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle
    from torch.optim.lr_scheduler import LRScheduler

    from pytest_distbench.layouts.simulated import Simulation
    from pytest_distbench.worker.context import RankContext

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}  # of autocast, by the name of the precision
AVERAGE = "the average of "  # before the name of a weight
_FIRST_SCALE = 2.0**10  # of the loss in float16: a small network's gradients do not overflow
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)

Batch = tuple[torch.Tensor, torch.Tensor]  # inputs and targets; the first dimension of both counts the samples

Tensors = dict[str, torch.Tensor]  # whole tensors on the CPU in float64, by name


class Oracle(Protocol):
    """Interface of an object that a pass hands each step's loss, gradients and state to, for comparison."""

    def see_gradients(
        self, step: Step, loss: float, weights: Tensors, gradients: Tensors, own: Set[str], lent: Set[str]
    ) -> None:
        """Take loss, weights and gradients before an update; ``own``: names on this rank; ``lent``: no gradient."""

    def see_state(self, step: Step, state: Tensors) -> None:
        """Take whole parameters, buffers and averages of weights of this rank after the update, to be compared."""


@dataclass(frozen=True, kw_only=True)
class TrainSpec:
    """A model, its data, its loss and its optimizer, without a layout.

    Attributes:
        model: makes the network. torch is seeded before each call.
        batch: makes the global batch of a step, counted from 0; the same in each call for a step.
        loss: takes outputs and targets, and returns a scalar: the mean over the terms of these targets.
        optimizer: makes the optimizer of parameters.
        terms: counts the terms of that mean in targets, such as tokens that are not masked. None counts samples.
        schedule: makes the schedule of an optimizer, stepped after each of its steps. None keeps its rate constant.
        max_norm: norm that the gradient is clipped to, or None.
        average: takes the average of a weight so far and the weight after an update, and returns the next average, such
            as ``0.99 * average + 0.01 * weight``. The first one is the weight. None keeps no averages.
        blocks: returns modules of the network that FSDP2 shards one by one, and that activation checkpointing computes
            again. With None, FSDP2 shards the network as a whole.
        tensor_parallel: returns a style by the name of each module of the network, for ``parallelize_module``.
        stages: cuts the network into as many modules as ranks, for a pipeline. Parameters keep their names.
        layouts: further layouts by name, functions of a :class:`Pass`.
        has_unused: whether a rank may lack gradients, as of experts that get no token: DDP finds such parameters.
    """

    model: Callable[[], nn.Module]
    batch: Callable[[int], Batch]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    terms: Callable[[torch.Tensor], int] | None = None
    schedule: Callable[[torch.optim.Optimizer], LRScheduler] | None = None
    max_norm: float | None = None
    average: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
    blocks: Callable[[Any], Iterable[nn.Module]] | None = None
    tensor_parallel: Callable[[Any], Mapping[str, ParallelStyle]] | None = None
    stages: Callable[[Any, int], Sequence[nn.Module]] | None = None
    layouts: Mapping[str, Callable[[Pass], object]] = field(default_factory=dict)
    has_unused: bool = False


class Draw(NamedTuple):
    """Call of the network with dropout: its share of the batch, the random state before it, and its masks."""

    share: int | None
    state: str
    is_used: bool
    masks: list[str]  # of dropout, from whatever generator


class Pass:
    """One run of a training: under a layout by all ranks, or by each rank alone.

    Attributes:
        rank: this process in its group.
        training: training that runs.
        index: index of this rank in the pass, or of all simulated ranks at once.
        of: number of ranks in the pass.
        oracle: what steps are compared with, or None.
        half: step after which a layout saves and loads, or 0 if it does not.
        simulation: simulation of the ranks, or None if they are real.
        draws: calls with dropout, or None if dropout is off.
        recorder: recorder of the modules in one of the steps, or None.
        dtypes: names of dtypes of the layout's parameters and gradients, by these words.
        names: names of the network's parameters and buffers, before it is wrapped.
    """

    def __init__(
        self,
        rank: RankContext,
        training: TrainSpec,
        numbers: Callable[[], Iterable[int]],
        *,
        oracle: Oracle | None = None,
        is_alone: bool = False,
        precision: str = "float32",
        order: int | None = None,
        half: int = 0,
        has_dropout: bool = False,
        simulation: Simulation | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.rank = rank
        self.training = training
        self.simulation = simulation
        self.index, self.of = (0, 1) if is_alone else (rank.rank, rank.world_size)
        if simulation is not None:
            self.index, self.of = simulation.index, simulation.ranks
        self.half = half
        self.oracle = oracle
        self.draws: list[Draw] | None = [] if has_dropout else None
        self.recorder = recorder
        self.dtypes: dict[str, set[str]] = {PARAMETERS: set(), GRADIENTS: set()}
        self.names: set[str] = set()
        self._network: nn.Module | None = None
        self._numbers = numbers
        self._precision = precision
        self._order = order

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the parameters."""
        return torch.float64 if self._precision == "float64" else torch.float32

    def model(self, seed: int | None = None) -> nn.Module:
        """Return the network on this rank's device, not wrapped, with the same weights in each call and rank.

        Dropout is off where values are compared.
        """
        torch.manual_seed(self.rank.seed if seed is None else seed)
        with self.as_one():
            model = self.training.model()
            named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
            if complex_ones := [name for name, tensor in named if tensor.is_complex()]:
                raise BodyError(f"{', '.join(complex_ones)}: complex tensors cannot be compared; wanted real ones")
            model.to(self.rank.device, self.dtype)
        self.names = {name for name, _ in named}
        for module in model.modules() if self.draws is None else ():
            if isinstance(module, DROPOUTS):
                module.p = 0.0
            elif isinstance(module, nn.MultiheadAttention | nn.RNNBase):
                module.dropout = 0.0
        self._network = model if self.simulation is None else self.simulation.model(model)
        return self._network

    def as_one(self) -> AbstractContextManager[object]:
        """Context in which simulated ranks compute once for all; real ranks do as before."""
        return contextlib.nullcontext() if self.simulation is None else self.simulation.paused()

    def arithmetic(self) -> AbstractContextManager[object]:
        """Context of a forward pass: autocast, if the precision asks for it."""
        if self._precision not in DTYPES:
            return contextlib.nullcontext()
        return torch.autocast(self.rank.device.type, DTYPES[self._precision])

    def updates(self, model: nn.Module) -> Updates:
        """Make the training's optimizer for a wrapped network."""
        return Updates(self, model, has_scale=self._precision == "float16")

    def steps(self) -> Iterator[Step]:
        """Yield the steps of this pass; a layout calls :meth:`Step.has_gradients` and :meth:`Step.is_over` of each."""
        for number in self._numbers():
            with self.as_one():
                batch = self._batch(number)
            step = Step(self, number, batch)
            with self._recording(step):
                yield step
            step.expect_over()

    def train(
        self,
        model: nn.Module,
        *,
        index: int = 0,
        of: int = 1,
        micro_batches: int = 1,
        around: Callable[[bool], AbstractContextManager[object]] = lambda is_last: contextlib.nullcontext(),
    ) -> None:
        """Train a wrapped network in the usual loop. A collective call.

        Args:
            model: wrapped network, which averages the gradients of all shares.
            index: index of this rank's share of each batch.
            of: number of shares that a batch is cut into.
            micro_batches: number of parts that a share is cut into, whose gradients are added up.
            around: makes the context of a micro-batch, given whether it is the last.
        """
        torch.manual_seed(self.rank.seed + 1 + index)  # other samples, other random numbers
        updates = self.updates(model)
        for step in self.steps():
            parts = step.share(index, of, micro_batches)
            losses = []
            for i, part in enumerate(parts):
                with around(i == len(parts) - 1):
                    loss = step.loss(model, part)
                    updates.scaled(of * loss).backward()
                losses.append(loss.detach())
            updates.unscale()
            step.has_gradients(model, torch.stack(losses).sum(), shares=of)
            updates.update()
            step.is_over(model, updates.averages)

    def of_all(self, own: Tensors) -> Tensors:
        """Return this rank's tensors, and those of other ranks that it lacks. A collective call."""
        if self.of == 1 or self.simulation is not None:
            return own
        names = exchanged(set(own), self.rank.gather)
        if all(each == names[0] for each in names):
            return own
        found: Tensors = {}
        for each in exchanged(own, self.rank.gather):
            found = each | found
        return found | own

    def copies(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Tensors:
        """Copy whole tensors, under the names that they have without wrappers. A collective call."""
        named = list(tensors)
        parts = [t.detach() if isinstance(t, DTensor) else copied(t) for _, t in named]
        return {self._bare(name): copied(whole(t)) for (name, _), t in zip(named, parts, strict=True)}

    def _bare(self, name: str) -> str:
        words = name.split(".")
        while (found := ".".join(words)) not in self.names and (added := [w for w in words if w in WRAPPERS]):
            words.remove(added[0])
        return found

    def _recording(self, step: Step) -> AbstractContextManager[object]:
        if self.recorder is None or self._network is None or step.number != self.recorder.step:
            return contextlib.nullcontext()
        return self.recorder.watching(self._network)  # by now it is wrapped: hooks of wrappers come first

    def _batch(self, number: int) -> Batch:
        inputs, targets = self.training.batch(number - 1)
        if self._order is not None:
            order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(self._order))
            inputs, targets = inputs[order], targets[order]
        return self._given(inputs), self._given(targets)

    def _given(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.rank.device, self.dtype if tensor.is_floating_point() else None)


class Updates:
    """Optimizer of a network, with the loss scale, clipping, schedule and averages of the training.

    Attributes:
        optimizer: optimizer of the training.
        schedule: schedule of the optimizer, or None.
        averages: averages of the weights by name; empty if the training keeps none.
    """

    def __init__(self, of: Pass, model: nn.Module, *, has_scale: bool) -> None:
        training = of.training
        self.optimizer = training.optimizer(list(model.parameters()))
        self.schedule = None if training.schedule is None else training.schedule(self.optimizer)
        self._scaler = torch.amp.GradScaler(of.rank.device.type, init_scale=_FIRST_SCALE, enabled=has_scale)
        self.scaled(torch.zeros((), device=of.rank.device))  # it is there from then on, in each stage of a pipeline
        self._parameters = list(model.parameters())
        self._max_norm = training.max_norm
        self._average = training.average
        self._weights = dict(parameters_of(model)) if training.average is not None else {}
        self.averages = {name: weight.detach().clone() for name, weight in self._weights.items()}

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss for the backward pass: in float16 it is scaled."""
        found: torch.Tensor = self._scaler.scale(loss)
        return found

    def unscale(self) -> None:
        """Divide the gradients by the scale of the loss."""
        self._scaler.unscale_(self.optimizer)

    def update(self, norm: Callable[[torch.Tensor], torch.Tensor] = lambda own: own) -> None:
        """Clip gradients, step, average the weights, and clear the gradients. A collective call.

        Args:
            norm: takes the norm of the gradient that this rank has, and returns that of the whole.
        """
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if self._max_norm is not None and gradients:
            total = norm(torch.stack([whole(gradient).norm() for gradient in gradients]).norm())
            for gradient in gradients:
                gradient.mul_((self._max_norm / total).clamp(max=1))
        self._scaler.step(self.optimizer)
        self._scaler.update()
        if self.schedule is not None:
            self.schedule.step()
        if self._average is not None:
            for name, weight in self._weights.items():
                self.averages[name] = self._average(self.averages[name], weight.detach())
        self.optimizer.zero_grad()


class Step:
    """One step of a pass.

    Attributes:
        number: number of the step, from 1.
        batch: the global batch.
    """

    def __init__(self, of: Pass, number: int, batch: Batch) -> None:
        self.number = number
        self.batch = batch
        self._pass = of
        self._terms: Callable[[torch.Tensor], int] = of.training.terms or len
        self._all_terms = self._terms(batch[1])
        self._share: int | None = None
        self._has_gradients = self._is_over = False
        self._recorder = None if of.recorder is None or of.recorder.step != number else of.recorder

    def share(self, index: int, of: int, micro_batches: int = 1) -> list[Batch]:
        """Return a share of the batch, in micro-batches.

        Raises:
            BodyError: the batch has too few samples, or unequal shares for simulated ranks.
        """
        samples = self.expect_samples(of * micro_batches, f"{micro_batches} for each of {of} ranks")
        self._share = index
        if (simulation := self._pass.simulation) is not None and index is simulation.index:
            if samples % of:
                raise BodyError(f"a batch of {samples} samples has no {of} equal shares: simulated ranks need them")
            inputs, targets = (simulation.spread(tuple(part.tensor_split(of)).__getitem__) for part in self.batch)
        else:
            inputs, targets = (part.tensor_split(of)[index] for part in self.batch)
        return list(zip(inputs.tensor_split(micro_batches), targets.tensor_split(micro_batches), strict=True))

    def expect_samples(self, least: int, why: str) -> int:
        """Return the number of samples of the batch; raise BodyError if it is below ``least``."""
        if (samples := len(self.batch[0])) < least:
            raise BodyError(
                f"wanted a batch of at least {least} samples, {why}; found {samples}: give it more, or run on fewer "
                "ranks (--world-size)"
            )
        return samples

    def loss(self, model: nn.Module, part: Batch) -> torch.Tensor:
        """Return what a part of the batch adds to the mean over the whole batch."""
        inputs, targets = part
        before = self._random_state()
        with self._pass.arithmetic():
            if self._pass.draws is None:
                outputs = model(inputs)
            else:
                masks: list[str] = []
                with masks_kept(masks):
                    outputs = model(inputs)
                is_used = self._random_state() != before
                self._pass.draws.append(Draw(self._share, before, is_used, masks))
            if self._recorder is not None:
                self._recorder.see_outputs(outputs)
            return self.weigh(outputs, targets)

    def weigh(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of a part of the batch, weighted by its share of the terms."""
        loss = self._weighed(outputs, targets)
        if self._recorder is not None:
            self._recorder.see_loss(loss)
        return loss

    def _weighed(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = self._pass.training.loss(outputs, targets)
        if (simulation := self._pass.simulation) is not None:
            of_ranks = [self._terms(each) / self._all_terms for each in simulation.values(targets)]
            return loss * simulation.spread(lambda i: torch.tensor(of_ranks[i], dtype=loss.dtype))
        terms = self._terms(targets)
        return loss if terms == self._all_terms else loss * (terms / self._all_terms)

    def has_gradients(self, model: nn.Module | None, loss: torch.Tensor | None, *, shares: int = 1) -> None:
        """Compare the loss and the gradients, before the update. A collective call.

        Args:
            model: wrapped network, or this rank's part of it, or None if it has none.
            loss: what this rank's share adds to the loss, or None.
            shares: number of shares that the batch was cut into.
        """
        self._has_gradients = True
        if (oracle := self._pass.oracle) is None:
            return
        rank = self._pass.rank
        # A tied weight has the name of each of its places.
        named = [] if model is None else list(parameters_of(model))
        reduced = [(name, p.grad) for name, p in named if p.grad is not None]
        weights, gradients = self._pass.copies(named), self._pass.copies(reduced)  # before anything waits for them
        for kind, tensors in ((PARAMETERS, named), (GRADIENTS, reduced)):
            self._pass.dtypes[kind].update(str(tensor.dtype).removeprefix("torch.") for _, tensor in tensors)
        if (simulation := self._pass.simulation) is not None:
            each = [] if loss is None else [float(own) for own in simulation.values(loss.detach())]
            total = math.fsum(each) * shares / simulation.ranks
        else:
            total = 0.0 if loss is None else float(loss.detach())
        if self._pass.of > 1 and simulation is None:
            total = rank.sum_over_ranks(total) * shares / rank.sum_over_ranks(float(loss is not None))
        own, of_all = {*weights, *gradients}, self._pass.of_all(gradients)
        lent = (weights.keys() & of_all.keys()) - gradients.keys()
        oracle.see_gradients(self, total, self._pass.of_all(weights), of_all, own, lent)

    def is_over(self, model: nn.Module | None, averages: Mapping[str, torch.Tensor] = MappingProxyType({})) -> None:
        """Compare parameters and buffers after the update, and averages of weights. A collective call.

        Raises:
            BodyError: the training keeps averages, and none are given.
        """
        self._is_over = True
        if model is None or self._pass.oracle is None:
            return
        if self._pass.training.average is not None and not averages:
            raise BodyError("the training keeps averages of its weights: wanted step.is_over(model, updates.averages)")
        state = self._pass.copies(state_of(model))
        found = self._pass.copies(averages.items())
        self._pass.oracle.see_state(self, state | {f"{AVERAGE}{name}": each for name, each in found.items()})

    def expect_over(self) -> None:
        """Raise BodyError if ``has_gradients`` or ``is_over`` was not called."""
        for was_called, name in ((self._has_gradients, "has_gradients"), (self._is_over, "is_over")):
            if not was_called:
                raise BodyError(f"step {self.number} of the layout is over without a call of step.{name}(model, ...)")

    def _random_state(self) -> str:
        if self._pass.draws is None:
            return ""
        device = self._pass.rank.device
        state = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
        return hashlib.sha256(state.numpy().tobytes()).hexdigest()


def parameters_of(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the floating-point parameters of a network by name, a tied one under each of its names."""
    yield from ((n, p) for n, p in model.named_parameters(remove_duplicate=False) if p.is_floating_point())


def state_of(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the floating-point parameters and buffers of a network by name."""
    yield from parameters_of(model)
    yield from ((name, buffer) for name, buffer in model.named_buffers() if buffer.is_floating_point())
