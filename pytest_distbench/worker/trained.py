"""TrainingWatch: what the optimizers of this rank train, and whether replicas stay equal.

Nothing is sent: each rank writes digests into its report, which are compared after the launch. A tensor is read at the
first update, after updates 1, 2, 4, 8 ..., and when its optimizer is gone or the body over; never inside a timed
iteration: a timed loop asks for it before its first iteration and between two of them.
"""

from __future__ import annotations

import functools
import gc
import itertools
import math
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from pytest_distbench.records.metric import UNDER_WAY
from pytest_distbench.records.trained import Option, TensorState, Trained
from pytest_distbench.worker import torch_internals
from pytest_distbench.worker.process import watch_casts
from pytest_distbench.worker.tensors import Sketch, digest, own_part, sketch, state_of

_T = TypeVar("_T")

_WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
"""Prefixes that DistributedDataParallel, torch.compile and others put before names."""

_AVERAGES = "torch.optim.swa_utils"

_NO_OPTIONS = ("params", "param_names", "initial_lr")
_COUNTERS = ("last_epoch", "verbose", "base_lrs", "T_cur", "num_bad_epochs", "cooldown_counter", "best")
"""Public attributes of schedulers that change from step to step, or that the optimizer has too."""


class TrainingWatch:
    """Watches one rank's optimizers; if off, every method does nothing.

    ``updates``: steps of all of them so far. ``under_way``: called after update :data:`UNDER_WAY`, when all memory has
    been allocated once.
    """

    def __init__(self, *, is_on: bool, is_clocked: Callable[[], bool] = lambda: False) -> None:
        self.updates = 0
        self.under_way: Callable[[], None] = lambda: None
        self._options: dict[str, Option] = {}
        self._is_on = is_on
        # in a CUDA graph that is being captured, too, nothing may wait for the device
        is_capturing = torch.cuda.is_current_stream_capturing
        self._is_clocked = lambda: is_clocked() or (torch.cuda.is_initialized() and is_capturing())
        self._hooks: list[Any] = []
        self._end_casts: Callable[[], None] = lambda: None
        self._optimizers: weakref.WeakKeyDictionary[Optimizer, _Known] = weakref.WeakKeyDictionary()
        self._number = 0
        self._around = _Around([])
        self._followed: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._roots: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
        self._ddps: weakref.WeakKeyDictionary[DistributedDataParallel, list[str]] = weakref.WeakKeyDictionary()
        self._labels: list[str] = []
        self._readings: list[weakref.finalize[..., Any]] = []
        self._weights: dict[str, TensorState] = {}
        self._compared: dict[str, weakref.ref[torch.Tensor]] = {}
        self._replicas: dict[str, list[int]] = {}
        self._unmanaged: set[str] = set()
        self._checks: list[tuple[int, list[str]]] = []
        self._remarks: dict[str, None] = {}

    def begin(self) -> None:
        if self._is_on:
            self._end_casts = watch_casts()
            self._hooks = [
                register_optimizer_step_pre_hook(torch_internals.uncompiled(self._safely(self._before_update))),
                register_optimizer_step_post_hook(torch_internals.uncompiled(self._safely(self._after_update))),
            ]

    def before_loop(self) -> None:
        """Read what all present optimizers train, before a timed loop begins."""
        if self._hooks:
            found = [o for o in _of_type(gc.get_objects(), Optimizer) if o not in self._optimizers]
            for optimizer in sorted(found, key=lambda o: type(o).__name__):
                self._safely(self._meet)(optimizer)

    def between_steps(self) -> None:
        """Compare replicas if due; called where nothing is timed."""
        if self._hooks and self.updates.bit_length() > max([0, *(at for at, _ in self._checks)]).bit_length():
            self._safely(self._compare_replicas)()

    def finish(self) -> Trained:
        """End the watch with the body, or with that of its first seed."""
        if not self._hooks:
            return Trained()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._end_casts()
        for read in self._readings:
            read()
        return Trained(
            updates=self.updates,
            weights=self._weights,
            options=self._options,
            names=list(self._compared),
            replicas={name: ranks for name, ranks in self._replicas.items() if name not in self._unmanaged},
            checks=self._checks,
            remarks=list(self._remarks),
        )

    def _safely(self, work: Callable[..., None]) -> Callable[..., None]:
        def do(*args: Any) -> None:
            try:
                work(*args)
            except Exception as error:  # noqa: BLE001 anybody's optimizer: no training may end by being looked at
                self._remarks[f"weights were not read: {type(error).__name__}: {str(error)[:100]}"] = None

        return do

    def _before_update(self, optimizer: Optimizer, *_: object) -> None:
        known, (first, count) = self._optimizers.get(optimizer), _extent(optimizer)
        if known is not None and first in known.parameters and self._around.optimizers:
            self._around = _Around([])  # until something is stepped again, all that step find the same around them
        if (known is None or (first, count) not in known.extents) and not self._is_clocked():
            self._meet(optimizer)
        for ddp, names in list(self._ddps.items()):
            if not ddp.require_forward_param_sync:  # the last forward pass was in no_sync
                self._unmanaged.update(names)  # an update without a reduction, as in local SGD

    def _after_update(self, *_: object) -> None:
        self.updates += 1
        if self.updates == 2:  # all that is cast in a step has been by now
            self._end_casts()
        if self.updates == UNDER_WAY:
            self.under_way()
        if self.updates & (self.updates - 1) == 0 and not self._is_clocked():
            self._compare_replicas()

    def _meet(self, optimizer: Optimizer) -> None:
        if (known := self._optimizers.get(optimizer)) is None:
            known = self._optimizers[optimizer] = _Known(self._number)
            self._number += 1
        taken = known.take(optimizer)
        if not taken:
            return
        if optimizer not in self._around.optimizers:
            self._around = _Around(gc.get_objects())  # not what was there before this rank was forked: that is frozen
        around = self._around
        schedulers = [s for s in _alive(around.schedulers) if s.optimizer is optimizer]
        self._options |= options_of(optimizer, schedulers, known.number, [group for group, _ in known.groups.values()])
        trained: dict[str, torch.Tensor] = {}
        for where, parameter in taken:
            root, name = around.named(parameter)
            trained[where if root is None else self._label(root) + name] = parameter
            if ranks := replicas_of(parameter):
                self._replicas[next(reversed(trained))] = ranks
        called = {id(parameter): name for name, parameter in trained.items()}
        self._compared |= {name: weakref.ref(p) for name, p in trained.items() if name not in self._compared}
        self._follow(optimizer, lambda: trained.items())
        for root in _alive(around.roots):
            if root not in self._followed and any(id(p) in called for p in root.parameters()):
                self._follow(root, functools.partial(_buffers, self._label(root), list(_kept_buffers(root))))
        for average in _alive(around.averages):
            if average not in self._followed:
                named = {f"average.{_WRAPPERS.sub('', n)}": p for n, p in average.named_parameters()}
                self._follow(average, named.items)
        for ddp in _alive(around.ddps):
            managed = [called[id(p)] for p in torch_internals.managed_by_ddp(ddp) if id(p) in called]
            self._ddps.setdefault(ddp, []).extend(managed)
            if managed:  # a framework's own reduction may leave DDP with a group that torch does not know
                self._replicas |= dict.fromkeys(managed, dist.get_process_group_ranks(ddp.process_group))

    def _label(self, root: torch.nn.Module) -> str:
        """Prefix of the names of an outermost module's tensors; "" for the first one."""
        if root not in self._roots:
            kind = type(getattr(root, "module", root)).__name__
            number = sum(label.startswith(kind) for label in self._labels) + 1
            self._roots[root] = "" if not self._labels else f"{kind}." if number == 1 else f"{kind}{number}."
            self._labels.append(self._roots[root])  # of those that are gone, too
        return self._roots[root]

    def _follow(self, owner: object, tensors: Callable[[], Iterable[tuple[str, torch.Tensor]]]) -> None:
        """Sketch the tensors of an object now, and read them when it is deleted; does not keep it or them alive."""
        if isinstance(owner, torch.nn.Module):
            self._followed.add(owner)
        first = {name: sketch(part) for name, tensor in tensors() if (part := own_part(tensor)) is not None}
        reading = weakref.finalize(owner, self._safely(self._read), tensors, first)
        reading.atexit = False
        self._readings.append(reading)

    def _read(self, tensors: Callable[[], Iterable[tuple[str, torch.Tensor]]], first: Mapping[str, Sketch]) -> None:
        for name, tensor in tensors():
            if (state := state_of(tensor, first=first.get(name))) is not None:
                self._weights[name] = state
            else:
                self._remarks["weights without readable values were not compared"] = None

    def _compare_replicas(self) -> None:
        parts = {name: own_part(p) if (p := of()) is not None else None for name, of in self._compared.items()}
        digests = ["" if part is None else digest(part) for part in parts.values()]
        self._checks.append((self.updates, digests))


class _Around:
    """The modules, optimizers and schedulers that existed when an optimizer first stepped, and names of parameters.

    A look takes 60 ms, and there may be an optimizer per parameter. No object is kept alive. ``roots``: modules that
    are part of no other; ``averages``: torch's averaged models.
    """

    def __init__(self, objects: Sequence[object]) -> None:
        modules = _of_type(objects, torch.nn.Module)
        inner = {id(child) for module in modules for child in module.children()}
        roots = [module for module in modules if id(module) not in inner]
        roots.sort(key=lambda root: (-sum(1 for _ in root.parameters()), type(root).__name__))
        self.optimizers = weakref.WeakSet(_of_type(objects, Optimizer))
        self.schedulers = [weakref.ref(scheduler) for scheduler in _of_type(objects, LRScheduler)]
        self.roots = [weakref.ref(root) for root in roots]
        self.ddps = [weakref.ref(ddp) for ddp in _of_type(modules, DistributedDataParallel)]
        self.averages = [weakref.ref(m) for m in modules if type(m).__module__ == _AVERAGES]
        self._names = {
            id(p): (weakref.ref(root), _WRAPPERS.sub("", name))
            for root in reversed(roots)
            for name, p in root.named_parameters()
        }

    def named(self, parameter: torch.Tensor) -> tuple[torch.nn.Module | None, str]:
        """The outermost module that has a parameter, or None, and the parameter's name in it."""
        of, name = self._names.get(id(parameter), (lambda: None, ""))
        return of(), name


def _of_type(objects: Iterable[object], kind: type[_T]) -> list[_T]:
    """Objects of a type, without proxies, which may compute something when asked for their class."""
    return [one for one in objects if issubclass(type(one), kind)]  # type: ignore[misc] # of that type it is then


def _alive(refs: Iterable[weakref.ref[_T]]) -> list[_T]:
    return [held for of in refs if (held := of()) is not None]


@dataclass(slots=True)
class _Known:
    """Parameters and groups that an optimizer had in steps so far: a framework may give it one group at a time."""

    number: int
    groups: dict[int, tuple[dict[str, Any], Iterator[int]]] = field(default_factory=dict)  # with numbers of parameters
    parameters: set[int] = field(default_factory=set)  # what is followed stays, so that these are theirs alone
    extents: set[tuple[int, int]] = field(default_factory=set)

    def take(self, optimizer: Optimizer) -> list[tuple[str, torch.Tensor]]:
        """Parameters that the optimizer did not have before, as (name, tensor): ``group 0, parameter 3``."""
        self.extents.add(_extent(optimizer))
        of, found = f"optimizer {self.number}, " if self.number else "", []
        for group in optimizer.param_groups:
            _, numbers = self.groups.setdefault(id(group), (group, itertools.count()))
            place = f"{of}group {list(self.groups).index(id(group))}, parameter"
            found += [(f"{place} {next(numbers)}", p) for p in group["params"] if id(p) not in self.parameters]
        self.parameters.update(id(parameter) for _, parameter in found)
        return found


def _extent(optimizer: Optimizer) -> tuple[int, int]:
    first = next((id(parameter) for group in optimizer.param_groups for parameter in group["params"]), 0)
    return first, sum(len(group["params"]) for group in optimizer.param_groups)


def _kept_buffers(root: torch.nn.Module) -> Iterator[tuple[str, dict[str, torch.Tensor | None], str]]:
    """Names of the buffers that a checkpoint has, and their places, as a module may replace the tensor there."""
    for prefix, module in root.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_floating_point() and name not in module._non_persistent_buffers_set:
                yield _WRAPPERS.sub("", f"{prefix}.{name}".removeprefix(".")), module._buffers, name


def _buffers(
    label: str, kept: Sequence[tuple[str, dict[str, torch.Tensor | None], str]]
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, place, key in kept:
        if (buffer := place.get(key)) is not None:
            yield label + name, buffer


def replicas_of(parameter: torch.Tensor) -> list[int]:
    """The ranks that hold the same part of a DTensor, by its mesh's replicate dimension, or [] if none."""
    mesh, placements = getattr(parameter, "device_mesh", None), getattr(parameter, "placements", ())
    own = mesh.get_coordinate() if mesh is not None else None
    if mesh is None or own is None or not any(p.is_replicate() for p in placements):
        return []
    index = tuple(slice(None) if p.is_replicate() else i for p, i in zip(placements, own, strict=True))
    ranks = sorted(mesh.mesh[index].flatten().tolist())
    return ranks if len(ranks) > 1 else []


def options_of(
    optimizer: Optimizer, schedulers: Sequence[LRScheduler], number: int, param_groups: Sequence[dict[str, Any]]
) -> dict[str, Option]:
    """Options of an optimizer with these parameter groups, joined by " | " where they differ, and of its schedulers."""
    kind = type(optimizer).__name__ + (f" (optimizer {number})" if number else "")
    found: dict[str, Option] = {}
    groups: list[dict[str, Option]] = [dict(_simple(group, without=_NO_OPTIONS)) for group in param_groups]
    for name in dict.fromkeys(itertools.chain(*groups)):
        values = [group.get(name, "none") for group in groups]
        is_one = all(value == values[0] for value in values)
        found[f"{kind}: {name}"] = values[0] if is_one else " | ".join(map(str, values))
    for scheduler in schedulers:
        own = {name: value for name, value in vars(scheduler).items() if not name.startswith("_")}
        found |= {f"{type(scheduler).__name__}: {name}": value for name, value in _simple(own, without=_COUNTERS)}
    return found


def _simple(values: Mapping[str, Any], *, without: Sequence[str]) -> Iterator[tuple[str, Option]]:
    for name, value in values.items():
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            value = value.item()
        if isinstance(value, list | tuple) and all(isinstance(v, bool | int | float | str) for v in value):
            value = ", ".join(map(str, value))
        if name in without or (isinstance(value, float) and not math.isfinite(value)):
            continue
        if isinstance(value, float):
            value = float(f"{value:.7g}")  # a schedule may compute one rate in two ways
        if isinstance(value, bool | int | float | str) or value is None:
            yield name, "none" if value is None else value
