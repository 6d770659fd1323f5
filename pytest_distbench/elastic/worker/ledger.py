"""Digests of what a worker of an elastic job holds, at each checkpoint and after each load of one.

Two states have one digest if every byte of them is equal. ``elastic/measures/ledger.py`` compares digests from the
timeline. Nothing is digested in a timed step, except the models' inputs in the first two steps of a generation. An
optimizer that the body does not keep, or makes again after ``rank.training(...)``, loses its state, such as momentum,
when it continues. What takes part in a training and was not handed over is in no checkpoint, and cannot be compared.
"""

from __future__ import annotations

import random
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from types import FrameType, ModuleType
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from pytest_distbench.elastic.records import OUTSIDE, RANDOM_PART, STEPS, HeldAt
from pytest_distbench.worker.context import RankContext

_WATCHED_STEPS = 2
"""Number of steps after a checkpoint whose inputs are digested. Two show whether inputs differ from step to step, and a
generation that goes back to that checkpoint takes the same steps."""


Place = Mapping[str, int]
"""How far a training has come: steps taken, the epoch, and its position, the samples of the epoch that are done."""


class Ledger:
    """Notes what a worker of a generation holds, and when.

    It covers the parts that the body has handed over, and the optimizers that have stepped, which ``memory`` knows.
    """

    def __init__(
        self, parts: Mapping[str, Any], memory: OptimizerMemory, note: Callable[..., None], *, rank: int
    ) -> None:
        self._rank = rank
        self._parts = parts
        models = {name: part for name, part in parts.items() if isinstance(part, torch.nn.Module)}
        self._optimizers = {name: part for name, part in parts.items() if isinstance(part, Optimizer)}
        known = {*models, *self._optimizers}
        self._others = {name: part for name, part in parts.items() if name not in known}
        self._models = models | models_of(self._others, known=models.values())
        self._memory = memory
        self._note = note
        self._random = of_random() if RANDOM_PART in parts else {}
        self._fresh: dict[str, str] = {}
        self._drawn_from: dict[str, str] = {}
        self._begun: dict[str, str] = {}
        self._inputs = ModelInputs(self._models)
        self._tensors: dict[str, dict[str, bytes]] = {}
        self.objects: dict[str, Any] = {}
        """Objects with a state that the body holds besides its parts, by name, see :func:`objects_of`."""

    def at_save(self, place: Place) -> None:
        """Note all state at a checkpoint: it is compared with what a later generation begins with."""
        before, found = self._tensors, self._whole()
        for index, optimizer in enumerate(self._memory.optimizers):
            name = _trained(index)
            found["parameters"][name] = of_parameters(optimizer)
            found["moments"][name] = of_moments(optimizer)
            found["steps"][name] = steps_of(optimizer)
        changed = {
            name: sum(digest != before.get(name, {}).get(tensor) for tensor, digest in tensors.items())
            for name, tensors in self._tensors.items()
        }
        rates = {name: rates_of(optimizer) for name, optimizer in self._optimizers.items()}
        self._write("save", place, moved=changed, **found, rates=rates, states=self._states(), random=of_random())

    def before_load(self) -> None:
        """Digest the state of the parts right before a load."""
        with suppress(Exception):  # a part may have no state before it is given one
            self._fresh = self._states(of=self._others.keys() - {RANDOM_PART})
        self._drawn_from = {RANDOM_PART: of_random()["torch"]} if RANDOM_PART in self._others else {}

    def at_load(self, place: Place) -> None:
        """Note, after a load, what the body may change before its first batch, as a rule for the learning rate does."""
        now = of_random() if RANDOM_PART in self._others else {}
        taken = {stream: found for stream, found in now.items() if self._random.get(stream) != found}
        self._write(
            "load",
            place,
            rates={name: rates_of(o) for name, o in self._optimizers.items()},
            states=self._states(),
            fresh={**self._fresh, **self._drawn_from},
            random=taken or {stream: found for stream, found in now.items() if stream == "torch"},
        )

    def at_begin(self, place: Place) -> None:
        """Note, before the first batch, what nobody may have changed since the load."""
        self._begun = of_random()
        random_ = self._begun if RANDOM_PART in self._others else {}
        self._write("begin", place, **self._whole(), states=self._states(of=self._fresh), random=random_)

    def note_left_out(self, *, draws_samples: bool) -> None:
        """Note, at the end of the first step, what took part in it and was not handed over."""
        now = of_random() if RANDOM_PART not in self._others else {}
        drawn = [stream for stream, found in self._begun.items() if now.get(stream, found) != found]
        parts = left_out(self._parts, self._memory.optimizers, drawn_from=drawn, draws_samples=draws_samples)
        if parts:
            self._note("left_out", parts=parts)

    def at_first_step(self, place: Place) -> None:
        """Note the state of optimizers right before their first step, and of what they train."""
        found: dict[str, dict[str, Any]] = {}
        for i, began in enumerate(self._memory.beginnings):
            for fact, value in began.items():
                found.setdefault(fact, {})[_trained(i)] = value
        self._write("step", place, fields=self._fields(), **found)

    def watch_inputs(self, steps_taken: int, samples: Sequence[int]) -> None:
        """Digest what the models are given in a step, if it is one of the first after a checkpoint."""
        if steps_taken < _WATCHED_STEPS:
            self._inputs.watch(len(samples))

    def note_inputs(self, step: int) -> None:
        """Note what the models were given in a step."""
        digest, rows, of_samples = self._inputs.take()
        if digest:
            self._note("fed", step=step, digest=digest, rows=rows, of_samples=of_samples)

    def _write(self, at: HeldAt, place: Place, **found: Any) -> None:
        per_rank = [name for name, part in self._others.items() if is_per_rank(part)]
        self._note("held", rank=self._rank, at=at, per_rank=per_rank, **place, **found)

    def _whole(self) -> dict[str, dict[str, Any]]:
        models, optimizers = self._models.items(), self._optimizers.items()
        self._tensors = {
            name: {tensor: of_tensor(values) for tensor, values in model.named_parameters()} for name, model in models
        }
        return {
            "parameters": {name: together(tensors) for name, tensors in self._tensors.items()},
            "buffers": {name: of_tensors(_buffers(model, saved=True)) for name, model in models},
            "fields": self._fields(),
            "options": {name: options_of(optimizer) for name, optimizer in optimizers},
            "built": {
                f"{name}.{buffer}": of_tensors([("", values)])
                for name, model in models
                for buffer, values in _buffers(model, saved=False)
            },
            "moments": {name: of_moments(optimizer) for name, optimizer in optimizers},
            "steps": {name: steps_of(optimizer) for name, optimizer in optimizers},
        }

    def _fields(self) -> dict[str, dict[str, str]]:
        found = {name: of_fields(part) for name, part in self._others.items() if name != RANDOM_PART}
        for name, held in self.objects.items():
            with suppress(Exception):  # it is none of ours, and may not be ready to give its state
                if digest := of_state(held.state_dict()):
                    found[OUTSIDE + name] = {"": digest}
        return {name: fields for name, fields in found.items() if fields}

    def _states(self, of: Collection[str] | None = None) -> dict[str, str]:
        parts = {name: part for name, part in self._others.items() if of is None or name in of}
        found = {name: of_state(part.state_dict()) for name, part in parts.items()}
        return {name: digest for name, digest in found.items() if digest}


class ModelInputs:
    """Digests all tensors that models are given in a step, over all their calls, and counts their rows.

    A compiled model is left out: a hook would break its graph.
    """

    def __init__(self, models: Mapping[str, torch.nn.Module]) -> None:
        self._models = models
        self._hooks: list[Any] = []
        self._found = blake2b(digest_size=16)
        self._rows: dict[str, int] = {}
        self._batch = 0
        self._of_samples: dict[str, list[str]] = {}

    def watch(self, batch: int) -> None:
        """Digest inputs until :meth:`take`, in a step with a batch of ``batch`` samples."""
        self.take()
        self._batch = batch
        self._hooks = [
            model.register_forward_pre_hook(partial(self._look, name), with_kwargs=True)
            for name, model in self._models.items()
        ]

    def take(self) -> tuple[str, dict[str, int], dict[str, list[str]]]:
        """Return the digest of the inputs since :meth:`watch`, or ""; rows by model; digests of rows by model."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        found, rows, of_samples = self._found, self._rows, self._of_samples
        self._found, self._rows, self._of_samples = blake2b(digest_size=16), {}, {}
        return found.hexdigest() if rows else "", rows, of_samples

    def _look(self, name: str, _: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():
            return
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        for tensor in tensors:
            self._found.update(of_tensor(tensor))
        if tensors and name not in self._rows and tensors[0].dim() and len(tensors[0]) == self._batch:
            self._of_samples[name] = of_rows(tensors[0])
        if tensors:
            self._rows[name] = self._rows.get(name, 0) + (len(tensors[0]) if tensors[0].dim() else 0)


def objects_of(frame: FrameType, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Objects with a state that a body holds in its variables, or in their attributes, and that are none of the parts.

    What is made of the parts alone, such as a model in DistributedDataParallel, is left out.
    """
    kept = [held for part in parts.values() for held in (part, *getattr(part, "__dict__", {}).values())]
    known = {id(held) for held in kept} | {
        id(p) for m in kept if isinstance(m, torch.nn.Module) for p in m.parameters()
    }
    variables = {name: held for name, held in frame.f_locals.items() if not isinstance(held, ModuleType | type)}
    inner = {
        f"{name}.{attribute}": held
        for name, owner in variables.items()
        if not isinstance(owner, torch.nn.Module | Optimizer | RankContext)
        for attribute, held in getattr(owner, "__dict__", {}).items()
    }

    found: dict[str, Any] = {}
    for name, held in {**variables, **inner}.items():
        has_state = all(callable(getattr(type(held), call, None)) for call in ("state_dict", "load_state_dict"))
        if id(held) in known or isinstance(held, type) or not has_state:
            continue
        if isinstance(held, torch.nn.Module):
            parameters = list(held.parameters())
            if parameters and all(id(parameter) in known for parameter in parameters):
                continue
        known.add(id(held))
        found[name] = held
    return found


def is_per_rank(part: object) -> bool:
    """Whether each rank has its own state in this part, and loads its own again."""
    return bool(getattr(part, "per_rank", False))


def _trained(index: int) -> str:
    return f"{STEPS} ({index + 1})" if index else STEPS


def _buffers(model: torch.nn.Module, *, saved: bool) -> list[tuple[str, torch.Tensor]]:
    """(name, buffer) of a model's buffers: with ``saved`` those registered as persistent, else the others."""
    found = []
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(prefix, recurse=False):
            if (name.rpartition(".")[2] not in module._non_persistent_buffers_set) is saved:
                found.append((name, buffer))
    return found


def models_of(parts: Mapping[str, Any], *, known: Iterable[torch.nn.Module]) -> dict[str, torch.nn.Module]:
    """Models that parts hold as attributes, as one that saves a part of a model does, and that are not ``known``."""
    owned = {id(parameter) for model in known for parameter in model.parameters()}
    found = {}
    for name, part in parts.items():
        for attribute, held in {} if is_per_rank(part) else getattr(part, "__dict__", {}).items():
            if isinstance(held, torch.nn.Module) and not all(id(one) in owned for one in held.parameters()):
                found[f"{name}.{attribute}"] = held
                owned |= {id(parameter) for parameter in held.parameters()}
    return found


class RandomStreams:
    """Saves and loads the random streams of this process: torch's, Python's, numpy's, CUDA's and given generators'.

    Each rank saves and loads its own. A rank that did not exist at the checkpoint keeps the streams it has.
    """

    per_rank = True

    def __init__(self, generators: Mapping[str, torch.Generator]) -> None:
        self._generators = generators

    def state_dict(self) -> dict[str, Any]:
        """State of all streams."""
        version, internal, spare = random.getstate()
        state: dict[str, Any] = {
            "torch": torch.get_rng_state(),
            "python": [version, list(internal), spare],
            "generators": {name: generator.get_state() for name, generator in self._generators.items()},
        }
        numpy = sys.modules.get("numpy.random")
        if numpy is not None:
            kind, keys, position, has_spare, spare = numpy.get_state()
            state["numpy"] = [kind, torch.from_numpy(keys.astype("int64")), position, has_spare, spare]
        if torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the streams. A stream that this process does not have is skipped."""
        torch.set_rng_state(state["torch"])
        version, internal, spare = state["python"]
        random.setstate((version, tuple(internal), spare))
        numpy = sys.modules.get("numpy.random")
        if numpy is not None and "numpy" in state:
            kind, keys, position, has_spare, spare = state["numpy"]
            numpy.set_state((kind, keys.numpy().astype("uint32"), position, has_spare, spare))
        if "cuda" in state:
            torch.cuda.set_rng_state_all(state["cuda"])
        for name, generator in self._generators.items():
            generator.set_state(state["generators"][name])


_SIZE = 16  # bytes of a digest

_ROW_SIZE = 6
_NO_OPTIONS = ("lr", "initial_lr", "params")
_PLAIN = (bool, int, float, str, tuple)

_STEP = "step"  # the slot in which optimizers of torch count their steps


def of_tensor(tensor: torch.Tensor) -> bytes:
    """Digest of a tensor's dtype, shape and values, on whatever device."""
    values = tensor.detach()
    values = getattr(values, "full_tensor", lambda: values)()  # of a tensor in shards, a collective call
    values = values.cpu().contiguous()
    found = blake2b(f"{values.dtype} {tuple(values.shape)} ".encode(), digest_size=_SIZE)
    if values.numel():
        found.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return found.digest()


def of_tensors(named: Iterable[tuple[str, torch.Tensor]]) -> str:
    return together({name: of_tensor(tensor) for name, tensor in named})


def together(named: Mapping[str, bytes]) -> str:
    found = blake2b(digest_size=_SIZE)
    for name, digest in named.items():
        found.update(name.encode() + b"\0" + digest)
    return found.hexdigest()


def of_rows(tensor: torch.Tensor) -> list[str]:
    rows = tensor.detach().cpu().contiguous().reshape(len(tensor), -1)
    return [blake2b(row.view(torch.uint8).numpy().data, digest_size=_ROW_SIZE).hexdigest() for row in rows]


def of_fields(part: object) -> dict[str, str]:
    """Name of an attribute -> digest, or for an int its text; numbers, tensors and containers of these alone."""
    fields = {} if isinstance(part, Mapping | list | tuple) else getattr(part, "__dict__", {})
    kept = {name: value for name, value in fields.items() if not isinstance(value, str | bool | None)}
    found = {name: str(value) if isinstance(value, int) else of_state(value) for name, value in kept.items()}
    return {name: digest for name, digest in found.items() if digest}


def options_of(optimizer: Optimizer) -> list[str]:
    """Options of an optimizer's groups in words, such as betas and weight decay; without its learning rate."""
    return [
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for group in optimizer.param_groups
        for name, value in group.items()
        if name not in _NO_OPTIONS and isinstance(value, _PLAIN)
    ]


def of_state(state: object) -> str:
    """Digest of what ``state_dict()`` returns: containers, tensors, arrays, numbers, texts; "" if it holds others."""
    found = blake2b(digest_size=_SIZE)
    try:
        _add(found, state)
    except TypeError:
        return ""
    return found.hexdigest()


def _add(found: Any, value: object) -> None:
    if isinstance(value, torch.Tensor):
        found.update(b"t" + of_tensor(value))
    elif isinstance(value, Mapping):
        found.update(f"d{len(value)}".encode())
        for key in value:
            _add(found, key)
            _add(found, value[key])
    elif isinstance(value, list | tuple):
        found.update(f"l{len(value)}".encode())
        for item in value:
            _add(found, item)
    elif isinstance(value, bytes | bytearray):
        found.update(f"b{len(value)} ".encode() + value)
    elif value is None or isinstance(value, bool | int | float | complex | str):
        text = repr(value).encode()
        found.update(f"s{len(text)} ".encode() + text)
    elif type(value).__module__ == "numpy" and hasattr(value, "tobytes") and hasattr(value, "dtype"):
        found.update(f"n{value.dtype} {getattr(value, 'shape', ())} ".encode() + value.tobytes())
    else:
        raise TypeError(type(value).__name__)


def of_moments(optimizer: Optimizer) -> dict[str, str]:
    """Digests of an optimizer's state over all parameters, by slot, such as ``exp_avg``; without its step counts."""
    slots: dict[str, Any] = {}
    for index, parameter in enumerate(_parameters(optimizer)):
        for slot, value in optimizer.state.get(parameter, {}).items():
            if slot != _STEP and isinstance(value, torch.Tensor):
                slots.setdefault(str(slot), blake2b(digest_size=_SIZE)).update(f"{index} ".encode() + of_tensor(value))
    return {slot: found.hexdigest() for slot, found in sorted(slots.items())}


def steps_of(optimizer: Optimizer) -> str:
    """Step counts of an optimizer over all its parameters, such as ``40``, or "" if it counts none."""
    counted = (optimizer.state.get(parameter, {}).get(_STEP) for parameter in _parameters(optimizer))
    return ", ".join(dict.fromkeys(f"{float(steps):g}" for steps in counted if steps is not None))


def of_parameters(optimizer: Optimizer) -> str:
    """Digest of the parameters that an optimizer trains."""
    return of_tensors((str(index), parameter) for index, parameter in enumerate(_parameters(optimizer)))


def rates_of(optimizer: Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def of_random() -> dict[str, str]:
    """Digests of the random streams of this process that a training may draw from, by name."""
    found = {"torch": of_state(torch.get_rng_state()), "python": of_state(random.getstate())}
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        found["numpy"] = of_state(numpy.get_state())
    if torch.cuda.is_initialized():
        found["cuda"] = of_state(torch.cuda.get_rng_state_all())
    return found


class OptimizerMemory:
    """Digests each optimizer's state before this generation's first training step, and counts all optimizer steps."""

    def __init__(self) -> None:
        self._before: dict[weakref.ref[Optimizer], tuple[int, dict[str, Any]]] = {}
        """Optimizer -> its number of states, and digests of what it began with, before its first step."""
        self._is_first = True
        self._updates, self._is_given_up = 0, False
        self._unused: tuple[torch.Tensor, torch.Tensor] | None = None
        self._hook: Any = register_optimizer_step_pre_hook(self._look)  # stays as long as the process

    def _look(self, optimizer: Optimizer, *_: object) -> None:
        if not self._updates:
            self._look_at_unused()
        self._updates += 1
        ref = weakref.ref(optimizer)
        if self._is_first and ref not in self._before:
            self._before[ref] = (
                count_states(optimizer),
                {
                    "parameters": of_parameters(optimizer),
                    "moments": of_moments(optimizer),
                    "steps": steps_of(optimizer),
                    "rates": rates_of(optimizer),
                },
            )

    def take_updates(self) -> tuple[int, bool]:
        """Optimizer steps since the last call; and whether a gradient of the batch before was dropped without one.

        An accumulated gradient stays the same tensor until an optimizer has stepped.
        """
        if not self._updates:
            self._look_at_unused()
        found = self._updates, self._is_given_up
        self._updates, self._is_given_up, self._unused = 0, False, None
        if not found[0]:
            parameters = (p for group in self.param_groups for p in group["params"])
            self._unused = next(((p, p.grad) for p in parameters if p.grad is not None), None)
        return found

    def _look_at_unused(self) -> None:
        if self._unused is not None:
            parameter, gradient = self._unused
            self._is_given_up = parameter.grad is not gradient
            self._unused = None

    def after_step(self) -> tuple[int, int] | None:
        """Numbers of states before and after the first training step, or None after it, or if nothing stepped."""
        if not self._is_first or not self._before:
            return None
        self._is_first = False
        return sum(held for held, _ in self._before.values()), sum(map(count_states, self.optimizers))

    @property
    def optimizers(self) -> list[Optimizer]:
        return [optimizer for found in self._before if (optimizer := found()) is not None]

    @property
    def beginnings(self) -> list[dict[str, Any]]:
        """Digests of what each optimizer began with, in the order of their first steps."""
        return [began for _, began in self._before.values()]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Groups of the first optimizer that stepped, or [] if none did or it is gone."""
        return next((optimizer.param_groups for optimizer in self.optimizers), [])


def count_states(optimizer: Optimizer) -> int:
    """Number of parameters for which an optimizer keeps a tensor between steps; 0 for SGD without momentum."""
    return sum(
        any(isinstance(value, torch.Tensor) for value in state.values())
        for state in optimizer.state.values()
        if isinstance(state, dict)
    )


_SCHEDULED = "initial_lr"  # key of the parameter groups of an optimizer that has a schedule of torch


def left_out(
    parts: Mapping[str, Any], optimizers: Iterable[Optimizer], *, drawn_from: Iterable[str], draws_samples: bool
) -> list[str]:
    """What took part in a step and is in no checkpoint: a text for each, with the ``rank.training`` call that keeps it.

    ``drawn_from`` are the random streams that the step has drawn from, if the body does not keep them.
    """
    kept = [held for part in parts.values() for held in (part, *getattr(part, "__dict__", {}).values())]
    known = {id(held) for held in kept}
    owned = {id(p) for held in kept if isinstance(held, torch.nn.Module) for p in held.parameters()}
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    trained = [parameter for group in groups for parameter in group["params"]]
    found = [
        f"the optimizer {type(optimizer).__name__}, which steps: rank.training(optimizer=...)"
        for optimizer in optimizers
        if id(optimizer) not in known
    ]
    if foreign := sum(id(parameter) not in owned for parameter in trained):
        found.append(f"{foreign} of the {len(trained)} tensors that are trained: rank.training(model=...)")
    if any(_SCHEDULED in group for group in groups) and not any(isinstance(held, LRScheduler) for held in kept):
        found.append("the schedule of the learning rate: rank.training(schedule=...)")
    if streams := list(drawn_from):
        found.append(f"random streams ({', '.join(streams)}): rank.training(random=rank.random_streams())")
    others = [part for part in parts.values() if not isinstance(part, torch.nn.Module | Optimizer | LRScheduler)]
    if draws_samples and not others:
        found.append("what chooses the samples: rank.training(sampler=...), which has state_dict and load_state_dict")
    return found
