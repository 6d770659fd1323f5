"""Comparison that the ranks of ``equivalent`` run: a layout against its float64 reference, bounded by controls."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import unittest
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch

from pytest_distbench.errors import BodyError, look_up, show
from pytest_distbench.layouts import (
    GRADIENT_DEVIATION,
    HELD_BYTES,
    LOSS_DEVIATION,
    RANDOM_CONFLICTS,
    SENT,
    STATE_DEVIATION,
    STEP_TIME,
)
from pytest_distbench.layouts.deviations import (
    GRADIENT,
    LOSS,
    STATE,
    WEIGHTS,
    Quantity,
    first_beyond,
    limits_of,
    times_beyond,
)
from pytest_distbench.layouts.dropout import without_dropout
from pytest_distbench.layouts.layouts import LAYOUTS, Layout, one
from pytest_distbench.layouts.modules import Recorder, Search, deviations_of, exchanged, of_ranks, of_simulated
from pytest_distbench.layouts.precision import Precision, highest
from pytest_distbench.layouts.reference import MISSING, NOT_FINITE, EachRank, Seen, StepReference
from pytest_distbench.layouts.simulated import Simulation
from pytest_distbench.layouts.training import AVERAGE, DTYPES, Draw, Oracle, Pass, TrainSpec
from pytest_distbench.records.metric import SAID, Bound, Scalar
from pytest_distbench.units import counted
from pytest_distbench.worker.membership import alone_in, group_of_one

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext

CONTROLS = 4  # one-rank trainings that differ by roundings alone
_TIMED = 3, 5  # warm-up and timed steps
_PARTS = {LOSS_DEVIATION: (LOSS,), GRADIENT_DEVIATION: (GRADIENT,), STATE_DEVIATION: (WEIGHTS, STATE)}


def compare(rank: RankContext, training: TrainSpec, *, is_timed: bool = True, shared_as: str = "") -> None:
    """Train without a layout in float64, then as controls, then under ``rank.params["layout"]``, and compare.

    Records ``loss_deviation``, ``gradient_deviation`` and ``state_deviation``, the largest of all steps, with the bound
    that the controls give; ``random_conflicts``; the layout's ``loss_curve``; and ``step_time``.

    Args:
        rank: this process in its group.
        training: training to compare.
        is_timed: whether to time several steps, or to run just one for the collectives that it sends.
        shared_as: key under which launches of a run share the limits of their controls, or "" to share nothing.

    Raises:
        BodyError: there is no such layout, nothing is trained, or the layout lacks a collective of its ``proof``.
    """
    _check(training)
    name, steps, precision = (rank.params[key] for key in ("layout", "steps", "precision"))
    simulated_ranks: int | None = rank.params.get("simulated_ranks")
    users = {
        key: LAYOUTS.get(key, Layout(train, can_be_simulated=True))._replace(train=train)
        for key, train in training.layouts.items()
    }
    layout = look_up({**LAYOUTS, **users}, name, "layout")
    if simulated_ranks and not layout.can_be_simulated:
        raise BodyError(f"layout {name!r}: torch cannot simulate its ranks: leave simulated_ranks= out")
    if rank.world_size == 1 and not simulated_ranks:
        raise unittest.SkipTest("nothing is spread over one rank, so nothing is compared: give --world-size=2 or more")
    numbers = range(1, steps + 1)

    alone = partial(alone_in, group_of_one())  # the world's size is no part of what is to be computed

    def reference(recorder: Recorder | None = None, computes: Precision | None = None) -> StepReference:
        model = Pass(rank, training, lambda: numbers, precision="float64").model
        with alone():
            return StepReference(training, model().to("cpu"), recorder, computes or highest_precision, alone)

    def tried(computes: Precision) -> None:
        with without_dropout(), alone():
            reference(computes=computes).differentiate(training.batch(0))

    highest_precision = highest(tried)

    def run(train: Callable[[Pass], object], oracle: Oracle, last: int = steps, **options: Any) -> dict[str, set[str]]:
        compared = Pass(rank, training, lambda: numbers[:last], oracle=oracle, precision=precision, **options)
        with without_dropout(), alone() if options.get("is_alone") else nullcontext():
            train(compared)
        return compared.dtypes

    def control(order: int) -> Control:
        run(one, found := reference(), is_alone=True, order=order)
        deviations = {quantity: seen.deviation for quantity, seen in found.seen.items()}
        return Control(deviations, found.losses, found.expected_losses, found.has_gradient, found.has_changed)

    def of_controls(compute: Callable[[int], Any]) -> list[Any]:
        orders = range(rank.rank, rank.rank + CONTROLS, rank.world_size)  # of every rank as many: all train alike
        each = exchanged({order % CONTROLS: compute(order % CONTROLS) for order in orders}, rank.gather)
        found = {order: control for of_rank in each for order, control in of_rank.items()}
        return [found[order] for order in range(CONTROLS)]

    def limits_by_controls() -> dict[Quantity, float]:
        controls: list[Control] = of_controls(control)
        _expect_trained(controls)
        return limits_of([control.deviations for control in controls])

    limits = _shared_limits(rank, shared_as, limits_by_controls) if shared_as else limits_by_controls()
    conflicts: list[str] | None = None
    if simulated_ranks:
        simulation = Simulation(simulated_ranks)
        found = [reference() for _ in range(simulation.ranks)]
        with simulation.running():
            dtypes = run(layout.train, EachRank(simulation, found), simulation=simulation)
        seen, sent = [each.seen for each in found], simulation.sent
    else:
        found = [reference()]
        half = max(1, steps // 2)
        dtypes = run(layout.train, found[0], half=half)
        drawing = Pass(rank, training, lambda: [1], precision=precision, has_dropout=True)
        layout.train(drawing)
        conflicts = _conflicts(rank, drawing.draws or [])
        timed = partial(_timed, rank, training, steps, *(_TIMED if is_timed else (0, 1)))
        layout.train(Pass(rank, training, timed, precision=precision))
        rank.record(HELD_BYTES, _held_bytes(rank), unit="B", better="exact", reduce="max")
        seen, sent = exchanged(found[0].seen, rank.gather), _sent(rank)
    if all(map(math.isfinite, found[0].losses)):
        rank.record("loss_curve", found[0].losses, better="curve")
    if missing := [op for op in layout.proof if op not in sent]:
        raise BodyError(
            f"layout {name!r}: no rank sent {' or '.join(missing)} in a step, as it should; they sent "
            f"{', '.join(sent) or 'nothing'}"
        )
    dtypes[SENT] = set().union(*sent.values())
    comparison = LayoutComparison(limits=limits, seen=seen, dtypes=dtypes, narrow=highest_precision.words())
    first = comparison.first
    if first is not None and first.part in (LOSS, GRADIENT):
        step = first.step

        def of_modules(order: int) -> dict[Quantity, float]:
            right, own = Recorder(step), Recorder(step)
            run(one, reference(right), last=step, recorder=own, is_alone=True, order=order)
            return deviations_of(right, own)

        bounds = limits_of(of_controls(of_modules))

        def search(*, is_eager: bool = False) -> Search:
            right, own = Recorder(step), Recorder(step, is_eager=is_eager)
            found = reference(right)
            if not simulated_ranks:
                run(layout.train, found, last=step, recorder=own, half=half)
                return Search(right, of_ranks(own, rank.gather), bounds)
            simulation = Simulation(simulated_ranks)
            with simulation.running():
                run(layout.train, EachRank(simulation, [found]), last=step, recorder=own, simulation=simulation)
                ranks = of_simulated(own, simulation.values, simulated_ranks)
            return Search(right, ranks, bounds)

        comparison = replace(comparison, module=_module(search))
    if rank.rank == 0:
        comparison.record(rank)
        rank.notebook.remarks += filter(None, [comparison.narrow])
        if conflicts is not None:
            _record_conflicts(rank, conflicts)


def _module(search: Callable[..., Search]) -> str:
    """Describe the first module at fault; if any is compiled, search again without the compiler."""
    found = search()
    sentence = found.sentence()
    if not sentence or not found.regions:
        return sentence
    with torch.compiler.set_stance("force_eager"):
        eager = search(is_eager=True).sentence()
    return eager or f"{sentence}; without the compiler no module deviates, so the fault is the compiler's"


_NEEDED = ("model", "batch", "loss", "optimizer")
_OPTIONAL = ("terms", "schedule", "average", "blocks", "tensor_parallel", "stages")


def _check(training: object) -> None:
    """Raise BodyError for a wrong field of a TrainSpec, and for batches that differ from call to call."""
    if not isinstance(training, TrainSpec):
        raise BodyError(f"wanted a TrainSpec, found {show(training)}")

    def refuse(name: str, wanted: str, found: object) -> NoReturn:
        raise BodyError(f"TrainSpec({name}=...): wanted {wanted}, found {show(found)}")

    for name in (*_NEEDED, *_OPTIONAL):
        if not callable(found := getattr(training, name)) and (found is not None or name in _NEEDED):
            refuse(name, "a function", found)
    if training.max_norm is not None and not (isinstance(training.max_norm, int | float) and training.max_norm > 0):
        refuse("max_norm", "a number above 0, or None", training.max_norm)
    if not isinstance(training.layouts, Mapping) or not all(map(callable, training.layouts.values())):
        refuse("layouts", "functions by their names", training.layouts)
    batches = [training.batch(0), training.batch(0)]
    for batch in batches:
        if not (isinstance(batch, tuple) and len(batch) == 2 and all(isinstance(t, torch.Tensor) for t in batch)):
            refuse("batch", "a pair of tensors", batch)
        if len(batch[0]) != len(batch[1]):
            refuse("batch", "as many targets as samples", tuple(map(len, batch)))
    if not all(map(torch.equal, *batches)):
        raise BodyError("TrainSpec(batch=...): two calls for step 0 give other samples: seed a generator by the step")


def _shared_limits(
    rank: RankContext, key: str, by_controls: Callable[[], dict[Quantity, float]]
) -> dict[Quantity, float]:
    """Read the limits that an earlier launch of this run stored, or compute and store them. A collective call."""
    file = rank.data_dir / f"controls-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    if exchanged(file.exists(), rank.gather)[0]:
        return {Quantity(*quantity): limit for quantity, limit in json.loads(file.read_text())}
    limits = by_controls()
    if rank.rank == 0:
        made = file.with_suffix(f".{os.getpid()}")
        made.write_text(json.dumps(list(limits.items())))
        made.replace(file)  # whole, or not there
    return limits


def _timed(rank: RankContext, training: TrainSpec, steps: int, warmup: int, iterations: int) -> Iterator[int]:
    _, targets = training.batch(0)
    facts = {"samples": len(targets), "tokens": targets.numel()}
    for i in rank.timed(STEP_TIME, warmup=warmup, iterations=iterations, facts=facts):
        yield steps + warmup + i + 1


def _held_bytes(rank: RankContext) -> int:
    facts = rank.watch.found[STEP_TIME].facts
    return sum(sum(facts.get(name, {}).values()) for name in ("parameter_bytes", "optimizer_bytes"))


class Control(NamedTuple):
    """Result of a control: a training on one rank with its samples in another order. Each rank computes some."""

    deviations: dict[Quantity, float]
    losses: list[float]
    expected_losses: list[float]
    has_gradient: bool
    has_changed: bool


def _expect_trained(controls: Sequence[Control]) -> None:
    """Raise BodyError for a training that diverges or changes nothing: a wrong layout of it would pass."""
    losses = controls[0].expected_losses
    message = f"on one rank in float64 the losses are {', '.join(f'{loss:.6g}' for loss in losses)}"
    if not all(map(math.isfinite, losses)):
        raise BodyError(f"the training diverges: {message}")
    noise = max(
        abs(own - expected)
        for each in controls
        for own, expected in zip(each.losses, each.expected_losses, strict=True)
    )
    if max(losses) - min(losses) <= noise:
        raise BodyError(f"nothing is trained, so under any layout it is equal: {message}")
    for holds, why in (
        (controls[0].has_gradient, "every gradient is 0"),
        (controls[0].has_changed, "no weight changes"),
    ):
        if not holds:
            raise BodyError(f"nothing is trained, so under any layout it is equal: on one rank {why}")


def _sent(rank: RankContext) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for of_rank in exchanged([(each.op, each.dtype) for each in rank.watch.sends(STEP_TIME)], rank.gather):
        for op, dtype in of_rank:
            found.setdefault(op, set()).add(dtype)
    return found


@dataclass(frozen=True, kw_only=True)
class LayoutComparison:
    """Deviations of a layout from its float64 reference.

    Attributes:
        limits: largest deviation allowed of each quantity.
        seen: what each rank found of the quantities that it has.
        dtypes: names of dtypes of parameters, gradients and what a step sends, by the words of ``NARROW``.
        narrow: which part of the float64 reference is in float32, in words, or "".
        module: first module at fault, in words; "" if none is, None if modules were not compared.
    """

    limits: Mapping[Quantity, float]
    seen: Sequence[Mapping[Quantity, Seen]]
    dtypes: Mapping[str, set[str]]
    narrow: str = ""
    module: str | None = None

    @property
    def first(self) -> Quantity | None:
        """The first quantity whose deviation exceeds its limit, or None."""
        return first_beyond(self._worst(), self.limits)

    def _worst(self) -> dict[Quantity, float]:
        return {q: max((each[q].deviation for each in self.seen if q in each), default=math.nan) for q in self.limits}

    def record(self, rank: RankContext) -> None:
        """Record the deviations up to the first that exceeds its limit: the later ones follow from it."""
        worst, first = self._worst(), self.first
        for name, parts in _PARTS.items():
            reached = [q for q in worst if q.part in parts and (first is None or q[:2] <= first[:2])]
            if not reached:
                continue
            quantity = first if first in reached else max(reached, key=lambda q: times_beyond(worst[q], self.limits[q]))
            value = worst[quantity]
            facts: dict[str, Scalar] = {
                **self._narrow(),
                **({SAID: self._message(quantity)} if quantity == first else {}),
            }
            where = "; ".join(filter(None, [f"{CONTROLS} controls", self.narrow]))
            bounds = [Bound(side="most", value=self.limits[quantity], where=where)]
            rank.notebook.note(name, value if math.isfinite(value) else None, at={}, facts=facts, bounds=bounds)

    def _message(self, first: Quantity) -> str:
        what = {
            WEIGHTS: f"{first.name} before step {first.step}",
            LOSS: f"the loss of step {first.step}",
            GRADIENT: f"the gradient of {first.name} in step {first.step}",
            STATE: f"{first.name} after the update of step {first.step}",
        }[first.part]
        same = [q for q in self.limits if q[:2] == first[:2]]
        off = [q for q in same if self._is_off(q)]
        more = f", with {counted(len(off) - 1, 'other')} of {len(same)}" if len(off) > 1 else ""
        holders = {i: each[first] for i, each in enumerate(self.seen) if first in each}
        ranks = [str(i) for i, one in holders.items() if not one.deviation <= self.limits[first]]
        where = f" on rank {', '.join(ranks)} alone" if len(ranks) < len(holders) else ""
        message = f"{what} deviates first{more}{where}"
        if all(one == MISSING for one in holders.values()):
            return f"{what} is missing{more}"
        if NOT_FINITE in holders.values():
            return f"{message}: it is not finite"
        saved = ", and whether they were saved and loaded" if first.step > 1 else ""
        check = {
            WEIGHTS: "check the initialisation" if first.step == 1 else "check what was saved and loaded",
            LOSS: f"{self._factor(first)}check the forward pass, its samples, and its weight and shares",
            GRADIENT: self._cause(off),
            STATE: f"its gradient is right, so check clipping, the optimizer and its schedule{saved}"
            if first._replace(part=GRADIENT) in self.limits
            else "its weight is right, so check how it is averaged, and whether it was saved and loaded"
            if first.name.startswith(AVERAGE)
            else "it is a buffer, so check the forward pass, and who sends it",
        }
        narrow = "".join(f"; {kind} in {dtypes}" for kind, dtypes in self._narrow().items())
        return f"{message}: {self.module or check[first.part]}{narrow}"

    def _cause(self, off: Sequence[Quantity]) -> str:
        seen = [(self.limits[q], each[q]) for q in off for each in self.seen if q in each]
        factors = [one.factor for _, one in seen]
        if not any(factors):
            return "it is 0, so check the backward pass, and whether it was cleared before it was compared"
        are_near = max(factors) - min(factors) <= max(map(abs, factors)) * max(self.limits[q] for q in off)
        if are_near and all(one.rest <= abs(one.factor) * limit for limit, one in seen):
            times = f"{factors[0]:.6g} times that of one rank"
            return f"{times}, so check the reduction, the weight of the loss, and clipping"
        for q in off:
            copies = [each[q] for each in self.seen if q in each]
            if any(copy.deviation <= self.limits[q] for copy in copies):
                return "other ranks hold the right one, so check what changes it after the reduction"
            if any(max(numbers) - min(numbers) > self.limits[q] for numbers in zip(*copies, strict=True)):
                return "ranks hold different gradients, so it was not reduced"
        if lacking := [str(i) for i, each in enumerate(self.seen) if self._lacks(each, off[0])]:
            return f"rank {', '.join(lacking)} has none, so check what is frozen there, and the reduction"
        same = "ranks hold the same gradients" if any(sum(q in each for each in self.seen) > 1 for q in off) else ""
        if self.module is None:
            return f"{same}{', so ' if same else ''}check the backward pass and what was reduced"
        return f"{same}{', and ' if same else ''}every module passes back the right ones, so check what was reduced"

    @staticmethod
    def _lacks(seen: Mapping[Quantity, Seen], gradient: Quantity) -> bool:
        return gradient not in seen and gradient._replace(part=STATE) in seen

    def _factor(self, loss: Quantity) -> str:
        found = next(each[loss] for each in self.seen if loss in each)
        return f"it is {found.factor:.6g} times that of one rank, so " if math.isfinite(found.factor) else ""

    def _narrow(self) -> dict[str, str]:
        narrow = {kind: sorted(dtypes & {*DTYPES}) for kind, dtypes in self.dtypes.items()}
        return {kind: " and ".join(dtypes) for kind, dtypes in narrow.items() if dtypes}

    def _is_off(self, quantity: Quantity) -> bool:
        held = [each[quantity].deviation for each in self.seen if quantity in each]
        return not held or not max(held) <= self.limits[quantity]


def _conflicts(rank: RankContext, draws: Sequence[Draw]) -> list[str]:
    """Describe pairs of ranks with equal random numbers for different samples, or different ones for equal samples."""
    by_rank: list[Sequence[Draw]] = exchanged(draws, rank.gather)
    conflicts = []
    for (i, mine), (j, others) in itertools.combinations(enumerate(by_rank), 2):
        for a, b in zip(mine, others, strict=False):
            is_known = a.share is not None and b.share is not None  # else the layout has cut the batch itself
            if is_known and (is_same := _draws_the_same(a, b)) is not None and is_same != (a.share == b.share):
                samples, numbers = ("the same", "other") if a.share == b.share else ("other", "the same")
                conflicts.append(f"ranks {i} and {j} have {samples} samples, and {numbers} random numbers for dropout")
    return conflicts


def _draws_the_same(a: Draw, b: Draw) -> bool | None:
    """Compare dropout masks, or the states of torch's generator if there are none; None if nothing is drawn."""
    if a.masks and b.masks:
        return a.masks == b.masks
    return a.state == b.state if a.is_used else None


def _record_conflicts(rank: RankContext, conflicts: Sequence[str]) -> None:
    facts: dict[str, Scalar] = {}
    if conflicts:
        facts[SAID] = f"{conflicts[0]}: seed a rank by the share of the batch that it has"
    bounds = [Bound(side="most", value=0.0, where="equivalent")]
    rank.notebook.note(RANDOM_CONFLICTS, len(conflicts), at={}, facts=facts, bounds=bounds)
