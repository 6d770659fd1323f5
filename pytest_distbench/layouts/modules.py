"""Search for the first module of a network whose inputs, outputs or gradients differ under a layout.

A :class:`Recorder` keeps the inputs and outputs of each module in one step, and the gradients of both. A rank may have
the value of the float64 reference, a slice of it along one dimension, or a summand: all ranks' summands add up to it.
"""

from __future__ import annotations

import io
import itertools
import math
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from pytest_distbench.layouts.deviations import Quantity

WRAPPERS = {"module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}
"""Parts that wrappers add to the names of parameters and modules."""


class Place(NamedTuple):
    """Input or output of a module, by the module's name and the tensor's position."""

    module: str
    is_output: bool
    at: int


_LOSS = Place("", is_output=True, at=-1)  # its gradient is what a layout multiplies the loss by
Kept = dict[Place, torch.Tensor]


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy on the CPU in float64."""
    return tensor.detach().to("cpu", torch.float64, copy=True)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return the full tensor. A collective call for a DTensor."""
    found: torch.Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return found


class Recorder:
    """Inputs and outputs of modules in one step, with gradients; of a module's calls, the first with a gradient.

    Gradients come from hooks of tensors: hooks of modules raise if their tensor is changed in place.

    Attributes:
        step: number of the step that is recorded.
        values: tensors in order of the calls.
        gradients: tensors in order of the backward pass; those of one tensor in reverse order of the calls.
        calls: number of calls of each module.
        classes: name of each module's class, by the module's name.
        takers: place of an input with a gradient -> names of the modules that take the same tensor.
        regions: compiled modules, inside of which nothing is recorded; empty in eager mode.
    """

    def __init__(self, step: int, *, is_eager: bool = False) -> None:
        self.step = step
        self._is_eager = is_eager
        self.values: Kept = {}
        self.gradients: Kept = {}
        self.calls: Counter[str] = Counter()
        self.classes: dict[str, str] = {}
        self.regions: set[str] = set()
        self.takers: dict[Place, list[str]] = {}
        self._values: dict[tuple[Place, int], torch.Tensor] = {}  # with the number of the call
        self._gradients: dict[tuple[Place, int], torch.Tensor] = {}
        self._tensors: dict[tuple[Place, int], tuple[int, int]] = {}
        self._alive: list[torch.Tensor] = []

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Record the modules of a network meanwhile."""
        compiled = {module: call for module in model.modules() if (call := module._compiled_call_impl) is not None}
        hooks = []
        for name, module in model.named_modules():
            bare = ".".join(word for word in name.split(".") if word not in WRAPPERS) if _is_wrapped(name) else name
            if bare in self.classes:
                continue  # what is inside of a wrapper
            self.classes[bare] = type(module).__name__
            # What its caller gives, before a plan makes a DTensor of it for this module alone.
            enter = partial(self._enter, bare)
            hooks.append(module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True))
            hooks.append(module.register_forward_hook(partial(self._leave, bare)))
            if self._is_eager:
                continue
            if "_orig_mod" in module._modules:
                self.regions.add(bare)
            if module in compiled:
                module._compiled_call_impl = partial(self._call, bare, module, compiled[module])
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for module, call in compiled.items():
                module._compiled_call_impl = call
            self._choose()

    def see_outputs(self, outputs: Any) -> None:
        """Keep the network's outputs if it is compiled as a whole, so that no module was recorded."""
        if not self._values:
            self.regions.add("")
            self._keep("", outputs, is_output=True)

    def see_loss(self, loss: torch.Tensor) -> None:
        """Keep the factor that a layout multiplies the loss by: the loss's own gradient."""
        if loss.requires_grad and _is_recorded():
            loss.register_hook(partial(self._take, _LOSS, 0))

    def _choose(self) -> None:
        """Keep one call of each module: the first of a reentrant checkpoint has no gradient."""
        chosen: dict[str, int] = {}
        for place, call in self._gradients:
            if place != _LOSS:
                chosen[place.module] = min(call, chosen.get(place.module, call))
        for (place, call), value in self._values.items():
            if place not in self.values or call == chosen.get(place.module, 0):
                self.values[place] = value
        kept = (key for key in self._gradients if key[0] == _LOSS or key[1] == chosen[key[0].module])
        for _, group in itertools.groupby(kept, key=self._tensors.get):
            keys = list(group)[::-1]
            takers = [place.module for place, _ in keys if not place.is_output]
            self.gradients.update({key[0]: self._gradients[key] for key in keys})
            self.takers.update({place: takers for place, _ in keys})
        self._alive.clear()

    def _call(self, name: str, module: nn.Module, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.regions.add(name)
        self._enter(name, module, args, kwargs)
        output = call(*args, **kwargs)
        self._leave(name, module, args, output)
        return output

    def _enter(self, name: str, _: nn.Module, args: Any, kwargs: Any) -> None:
        if _is_recorded():
            self._keep(name, (args, kwargs), is_output=False)
            self.calls[name] += 1

    def _leave(self, name: str, _: nn.Module, __: Any, output: Any) -> None:
        if _is_recorded():
            self._keep(name, output, is_output=True)

    def _keep(self, name: str, tree: Any, *, is_output: bool) -> None:
        call = self.calls[name] - is_output
        for i, tensor in enumerate(_tensors(tree)):
            if tensor.is_meta or tensor.is_complex():
                continue
            place = Place(name, is_output, i)
            self._values[place, call] = _kept(tensor)
            if tensor.requires_grad and torch.is_grad_enabled():
                self._alive.append(tensor)  # else another one gets its id
                self._tensors[place, call] = id(tensor), tensor._version  # of what is changed in place there are two
                tensor.register_hook(partial(self._take, place, call))

    def _take(self, place: Place, call: int, gradient: torch.Tensor) -> None:
        if (place, call) not in self._gradients:
            self._gradients[place, call] = _kept(gradient)


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
        return
    if is_dataclass(tree) and not isinstance(tree, Mapping):
        tree = vars(tree)
    if isinstance(tree, Mapping | list | tuple):
        for each in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _tensors(each)


_TRIALS = {"_forward_metadata_inference", "_shape_inference"}  # of a pipeline, with what is no batch


def _is_recorded() -> bool:
    if torch.compiler.is_compiling():
        return False
    frames = (frame.f_code.co_name for frame, _ in traceback.walk_stack(None))
    return not any(name in _TRIALS for name in frames)


def _is_wrapped(name: str) -> bool:
    return any(word in WRAPPERS and word != "module" for word in name.split("."))


def _kept(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone() if isinstance(tensor, DTensor) else copied(tensor)


class OfRank(NamedTuple):
    """Record of one rank: values and gradients by place, calls by module, and compiled modules."""

    values: Kept
    gradients: Kept
    calls: Mapping[str, int]
    regions: set[str]


def of_ranks(recorder: Recorder, gather: Callable[[bytes], Sequence[bytes]]) -> list[OfRank]:
    """Return the record of each rank, in whole tensors where all ranks have them. A collective call."""
    parts = recorder.values, recorder.gradients
    distributed = [sorted(place for place, tensor in part.items() if isinstance(tensor, DTensor)) for part in parts]
    for part, own, each in zip(parts, distributed, zip(*exchanged(distributed, gather), strict=True), strict=True):
        for place in own:
            is_everywhere = all(place in places for places in each)  # then all ranks may ask for the whole of it
            part[place] = copied(whole(part[place]) if is_everywhere else part[place].to_local())  # type: ignore[attr-defined]
    return [OfRank(*each) for each in exchanged((*parts, dict(recorder.calls), recorder.regions), gather)]


def of_simulated(
    recorder: Recorder, values: Callable[[torch.Tensor], Sequence[torch.Tensor]], ranks: int
) -> list[OfRank]:
    """Return the record of each simulated rank; ``values`` returns a tensor's value on each of them."""

    def of_all(part: Kept) -> dict[Place, Sequence[torch.Tensor]]:
        return {place: values(copied(whole(tensor))) for place, tensor in part.items()}

    def of(rank: int, part: dict[Place, Sequence[torch.Tensor]]) -> Kept:
        return {place: each[rank] for place, each in part.items()}

    outputs, gradients = of_all(recorder.values), of_all(recorder.gradients)
    return [OfRank(of(i, outputs), of(i, gradients), recorder.calls, set()) for i in range(ranks)]


def exchanged(own: Any, gather: Callable[[bytes], Sequence[bytes]]) -> list[Any]:
    """Gather an object of each rank, in order of ranks. A collective call."""
    packed = io.BytesIO()
    torch.save(own, packed)
    return [torch.load(io.BytesIO(data), weights_only=False) for data in gather(packed.getvalue())]


def deviations_of(reference: Recorder, control: Recorder) -> dict[Quantity, float]:
    """Return how far a control is off at each place, by :func:`quantity_of`."""
    found = {}
    scale = control.gradients.get(_LOSS, torch.ones(()))
    for is_backward, (rights, owns) in enumerate(
        [(reference.values, control.values), (reference.gradients, control.gradients)]
    ):
        for place, right in rights.items():
            if place in owns and place != _LOSS and right.shape == owns[place].shape:
                own = owns[place] / scale if is_backward else owns[place]
                found[quantity_of(place, is_backward=bool(is_backward))] = distance(own, right, right)
    return found


def quantity_of(place: Place, *, is_backward: bool) -> Quantity:
    """Return the key of a place's value, or gradient, among the limits."""
    return Quantity(1, int(is_backward), repr(tuple(place)))


def distance(found: torch.Tensor, right: torch.Tensor, whole: torch.Tensor) -> float:
    """Return the norm of the difference over the norm of ``whole``, or infinity if that is not finite."""
    over = float((found - right).norm()) / (float(whole.norm()) or 1.0)
    return over if math.isfinite(over) else math.inf


RIGHT, SUMMAND, UNKNOWN, WRONG = range(4)


class Search:
    """Search for the first module whose output or gradient differs from the float64 reference.

    Args:
        expected: record of the whole batch on one rank in float64.
        ranks: record of each rank.
        limits: largest deviation of each value and gradient, by :func:`quantity_of`.
    """

    def __init__(self, expected: Recorder, ranks: Sequence[OfRank], limits: Mapping[Quantity, float]) -> None:
        self._expected = expected
        self._ranks = ranks
        self._limits = limits
        self._positions: dict[tuple[int, int, int, int], torch.Tensor] = {}
        self._slices: dict[tuple[Place, int], dict[int, torch.Tensor]] = {}  # of a place and dimension, by rank
        self._wrong: list[tuple[int, torch.Tensor, torch.Tensor, bool]] = []  # rank, found, right, whether a slice
        self._limit = 0.0
        scales = [rank.gradients[_LOSS] for rank in ranks if _LOSS in rank.gradients]
        self._scales = [rank.gradients.get(_LOSS, scales[0] if scales else torch.ones(())) for rank in ranks]

    def sentence(self) -> str:
        """Describe the first module at fault, with the rank and how far it is off; "" if none is."""
        return self._first(is_backward=False) or self._shares() or self._first(is_backward=True)

    def _first(self, *, is_backward: bool) -> str:
        order = list(self._expected.gradients if is_backward else self._expected.values)
        order = [place for place in order if self._holders(place, is_backward=is_backward)]
        forms: list[int] = []
        for i, place in enumerate(order):
            forms.append(self._form(place, is_backward=is_backward))
            if forms[i] == WRONG:
                return self._message(order[: i + 1], forms, is_backward=is_backward)
        return ""

    def _shares(self) -> str:
        """Describe the first tensor of which ranks together lack a part; "" if there is none.

        Parts are followed place by place: a rank may have any number of the tokens that a router gives to an expert.
        """
        calls = self._expected.calls
        if any(count > calls[name] for rank in self._ranks for name, count in rank.calls.items()):
            return ""  # of several micro-batches the first was recorded
        for (place, dim), own in self._slices.items():
            right = self._expected.values[place]
            is_complete = len(torch.cat([*own.values()]).unique()) == right.shape[dim]
            # Each rank counts its own from 0, so numbers of samples are nobody's; but those that the network is given
            # are tokens.
            is_counted = bool(place.module) and torch.equal(right, right.round())
            if is_complete or is_counted or len(own) < len(self._ranks):
                continue
            # Of rows that are equal, such as one token's at two experts, nobody can say which of them a rank has.
            firsts = _firsts(right, dim, self._limits[quantity_of(place, is_backward=False)])
            has = {i: firsts[at] for i, at in own.items()}
            if (found := len(torch.cat([*has.values()]).unique())) < (size := len(firsts.unique())):
                same = [i for i, at in has.items() if sum(map(at.equal, has.values())) > 1]
                ranks = f"ranks {' and '.join(map(str, same))} have the same part, and " if same else ""
                return f"modules are right, but {ranks}all ranks together have {found} of {size} of dimension {dim}"
        return ""

    @property
    def regions(self) -> set[str]:
        """Names of the modules that are compiled."""
        return set().union(*(rank.regions for rank in self._ranks))

    def _holders(self, place: Place, *, is_backward: bool) -> dict[int, torch.Tensor]:
        if not math.isfinite(self._limits.get(quantity_of(place, is_backward=is_backward), math.inf)):
            return {}  # of the loss; or a mask whose smallest number is that of its dtype
        if is_backward:
            return {
                i: rank.gradients[place] / self._scales[i]
                for i, rank in enumerate(self._ranks)
                if place in rank.gradients
            }
        return {i: rank.values[place] for i, rank in enumerate(self._ranks) if place in rank.values}

    def _form(self, place: Place, *, is_backward: bool) -> int:
        right = (self._expected.gradients if is_backward else self._expected.values)[place]
        self._limit = limit = self._limits[quantity_of(place, is_backward=is_backward)]
        held = self._holders(place, is_backward=is_backward)
        self._wrong = []
        for i, found in held.items():
            part = self._part(i, found, right, limit, None if is_backward else place)
            if part is None:
                return UNKNOWN
            if not distance(found, part, right) <= limit:
                self._wrong.append((i, found, part, part.shape != right.shape))
        if not self._wrong:
            return RIGHT
        found_all = list(held.values())
        if right.dim() == 0:
            return UNKNOWN  # a mean over a share is neither
        if len(held) == len(self._ranks) > 1 and all(found.shape == right.shape for found in found_all):
            size = math.fsum(float(found.norm()) for found in found_all) / (float(right.norm()) or 1.0)
            off = distance(torch.stack(found_all).sum(0), right, right)
            is_sum = math.isfinite(off) and off <= limit * max(size, 1)
            if is_sum and any(multiple(found, right)[1] > limit for found in found_all):
                return SUMMAND
            calls = max(rank.calls.get(place.module, 0) for rank in self._ranks)
            if is_backward and calls > self._expected.calls[place.module]:
                return UNKNOWN  # a summand of one micro-batch
        return WRONG

    def _part(
        self, rank: int, found: torch.Tensor, right: torch.Tensor, limit: float, place: Place | None
    ) -> torch.Tensor | None:
        """Return the part of ``right`` that a rank has, and keep its indices; None if no part has that shape."""
        if found.shape == right.shape:
            return right
        if found.dim() != right.dim():
            return None
        [dim, *more] = [d for d in range(right.dim()) if found.shape[d] != right.shape[d]]
        if more or found.shape[dim] > right.shape[dim]:
            return None
        size, own = right.shape[dim], found.shape[dim]
        key = rank, dim, size, own
        chunk = torch.arange(size).tensor_split(len(self._ranks))[rank]
        tried = [self._positions[key]] if key in self._positions else []
        tried += [chunk] if len(chunk) == own else []
        for at in [*tried, _nearest(found, right, dim)]:
            if distance(found, part := right.index_select(dim, at), right) <= limit:
                self._positions[key] = at
                if place is not None:
                    self._slices.setdefault((place, dim), {})[rank] = at
                return part
        return right.index_select(dim, tried[0] if tried else at)

    def _message(self, order: Sequence[Place], forms: Sequence[int], *, is_backward: bool) -> str:
        place, before = order[-1], [p for p, form in zip(order, forms, strict=False) if form != UNKNOWN][:-1]
        summands = {p[:2] for p, form in zip(order, forms, strict=False) if form == SUMMAND}
        sides = list(dict.fromkeys(p[:2] for p in before if p[:2] != place[:2]))
        run = list(itertools.takewhile(summands.__contains__, reversed(sides)))
        side = "backward" if is_backward else "forward"
        if run:
            first, _ = run[-1]
            what = "the gradient of what it takes" if is_backward else "what it puts out"
            user = self._caller(place.module) if place.is_output == is_backward else place.module
            return (
                f"{self._named(first)}, {side}: {what} is not reduced: the sum over ranks is right, and "
                f"{self._named(user)} uses it as if it were whole"
            )
        how = self._how()
        if is_backward and not before:
            return f"the loss, backward: what it passes back to {self._named(place.module)}: {how}"
        if place == Place("", is_output=is_backward, at=place.at):
            return f"what {self._named('')} is given: {how}"
        is_own = place.is_output != is_backward  # forward an output, backward the gradient of an input
        owner = place.module if is_own else self._caller(place.module)
        inside = [p for p in before if _is_inside(p.module, owner)]
        if is_own and not inside:
            takers = self._expected.takers[place] if is_backward else [place.module]  # the gradient is that of all
            inner = [each for each in takers if not any(_is_inside(other, each) for other in takers)]
            return f"{' or '.join(map(self._named, inner))}{self._compiled(place.module)}, {side}: {how}"
        where = f"in {owner + '.' if owner else ''}forward ({self._expected.classes[owner]})"
        if near := [p.module for p in inside if p.is_output != is_backward]:
            where += f", {'before' if is_backward else 'behind'} {near[-1]}"
        what = "" if is_own else f"what {place.module} {'puts out' if is_backward else 'takes'}: "
        return f"{where}, {side}: {what}{how}"

    def _caller(self, name: str) -> str:
        words = name.split(".")[:-1]
        while words and not self._expected.calls[".".join(words)]:
            words.pop()
        return ".".join(words)

    def _named(self, name: str) -> str:
        kind = self._expected.classes[name]
        return f"{name} ({kind})" if name else f"the network ({kind})"

    def _compiled(self, name: str) -> str:
        return ", compiled" if name in self.regions else ""

    def _how(self) -> str:
        """Describe which rank is off, and how; of several ranks the one that is furthest off."""
        rank, found, right, is_slice = max(self._wrong, key=lambda each: distance(each[1], each[2], each[2]))
        if len(self._wrong) < len(self._ranks):
            who = f"rank {rank}'s slice" if is_slice else f"rank {rank}'s"
        else:
            who = "each rank's slice" if is_slice else "it"
        return f"{who} {_pattern(found, right, len(self._ranks), self._limit)}"


def _pattern(found: torch.Tensor, right: torch.Tensor, ranks: int, limit: float) -> str:
    off = distance(found, right, right)
    if not math.isfinite(off):
        return "is not finite"
    if not found.any():
        return "is 0"
    factor, rest = multiple(found, right)
    is_zeroed = (found == 0) & (right != 0)
    if rest <= limit * max(abs(factor), 1) and f"{factor:.3g}" != "1":
        known = {f"{ranks}": ", the number of ranks", f"{1 / ranks:.3g}": ", one over the number of ranks"}
        return f"is {factor:.3g} times what it should be{known.get(f'{factor:.3g}', '')}"
    differs = (found - right).abs() > limit * right.abs().max()
    if is_zeroed.any() and torch.equal(differs & ~is_zeroed, torch.zeros_like(differs)):
        return f"is 0 in {int(is_zeroed.sum())} of {found.numel()} elements, as under a mask"
    for dim in range(found.dim()):
        at = _rows(differs, dim).any(1).nonzero().flatten()
        if 0 < len(at) <= found.shape[dim] // 2 and int(at[-1] - at[0]) == len(at) - 1:
            return f"is off by {off:.1e} of its norm, at {int(at[0])} to {int(at[-1])} of dimension {dim} alone"
    return f"is off by {off:.1e} of its norm"


def multiple(found: torch.Tensor, right: torch.Tensor) -> tuple[float, float]:
    """Return the factor of the multiple of ``right`` nearest to ``found``, and the distance from it."""
    square = float(right.square().sum())
    factor = float((found * right).sum()) / square if square else 1.0
    return factor, distance(found, factor * right, right)


def _nearest(found: torch.Tensor, right: torch.Tensor, dim: int) -> torch.Tensor:
    return _distances(found, right, dim).argmin(1)


def _firsts(right: torch.Tensor, dim: int, limit: float) -> torch.Tensor:
    """Return, for each index along a dimension, the first index with equal values."""
    are_equal = _distances(right, right, dim) <= limit * right.norm()
    return (are_equal * torch.arange(len(are_equal), 0, -1)).argmax(1)


def _distances(found: torch.Tensor, right: torch.Tensor, dim: int) -> torch.Tensor:
    rows, of_all = (_rows(each.nan_to_num(), dim) for each in (found, right))
    return torch.cdist(rows, of_all, compute_mode="donot_use_mm_for_euclid_dist")


def _rows(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    return tensor.movedim(dim, 0).reshape(tensor.shape[dim], -1)


def _is_inside(name: str, owner: str) -> bool:
    return name != owner and (not owner or name.startswith(f"{owner}."))
