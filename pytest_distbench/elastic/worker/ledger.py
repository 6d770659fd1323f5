"""The ledger of a training: at each checkpoint, and behind each load of one, what this worker holds, as digests.

Whether they agree is judged from the timeline, by ``elastic/measures/ledger.py``. Nothing is looked at in a timed step,
but for the models' inputs in the first two steps of a generation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from types import FrameType, ModuleType
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from pytest_distbench.elastic.timeline import OUTSIDE, RANDOM_PART, STEPS, HeldAt
from pytest_distbench.elastic.worker import state
from pytest_distbench.elastic.worker.state import OptimizerMemory, left_out
from pytest_distbench.worker.context import RankContext

_WATCHED_STEPS = 2
"""Behind a checkpoint, whose inputs are looked at: two, to see that they differ from step to step. A generation that
goes back to that checkpoint takes them again."""


Place = Mapping[str, int]
"""How far a training has come: steps taken, the epoch, and its position, which is samples of it that are done."""


class Ledger:
    """What a worker of a generation holds, and when.

    It is made of the parts that the body has handed over, and of a memory that knows the optimizers that have stepped.
    """

    def __init__(
        self, parts: Mapping[str, Any], memory: OptimizerMemory, tell: Callable[..., None], *, rank: int
    ) -> None:
        self._rank = rank
        self._parts = parts
        self._models = {name: part for name, part in parts.items() if isinstance(part, torch.nn.Module)}
        self._optimizers = {name: part for name, part in parts.items() if isinstance(part, Optimizer)}
        known = {*self._models, *self._optimizers}
        self._others = {name: part for name, part in parts.items() if name not in known}
        self._memory = memory
        self._tell = tell
        self._random = state.of_random() if RANDOM_PART in parts else {}
        self._fresh: dict[str, str] = {}
        self._drawn_from: dict[str, str] = {}
        self._begun: dict[str, str] = {}
        self._inputs = Inputs(self._models)
        self._tensors: dict[str, dict[str, bytes]] = {}
        self.objects: dict[str, Any] = {}
        """What the body has besides its parts that has a state, by name, see :func:`objects_of`."""

    def at_save(self, place: Place) -> None:
        """At a checkpoint: all of it. What is saved is compared with what a later generation begins with."""
        stepped = {_trained(i): found for i, found in enumerate(self._memory.optimizers)}
        all_optimizers = {**self._optimizers, **stepped}
        self._write(
            "save",
            place,
            moved=self._moved(),
            parameters={**self._parameters(), **{name: state.of_parameters(o) for name, o in stepped.items()}},
            buffers=self._buffers(),
            fields=self._fields(),
            options={name: state.options_of(o) for name, o in self._optimizers.items()},
            built=self._built(),
            moments={name: state.of_moments(o) for name, o in all_optimizers.items()},
            steps={name: state.steps_of(o) for name, o in all_optimizers.items()},
            rates={name: state.rates_of(o) for name, o in self._optimizers.items()},
            states=self._states(),
            random=state.of_random(),
        )

    def before_load(self) -> None:
        """Right before a load: what the parts begin with that are given their state in it."""
        with suppress(Exception):  # a part may have no state before it is given one
            self._fresh = self._states(of=self._others.keys() - {RANDOM_PART})
        self._drawn_from = {RANDOM_PART: state.of_random()["torch"]} if RANDOM_PART in self._others else {}

    def at_load(self, place: Place) -> None:
        """Behind a load: what the body may set anew before its first batch, as a rule for the learning rate does."""
        now = state.of_random() if RANDOM_PART in self._others else {}
        taken = {stream: found for stream, found in now.items() if self._random.get(stream) != found}
        self._write(
            "load",
            place,
            rates={name: state.rates_of(o) for name, o in self._optimizers.items()},
            states=self._states(),
            fresh={**self._fresh, **self._drawn_from},
            random=taken or {stream: found for stream, found in now.items() if stream == "torch"},
        )

    def at_begin(self, place: Place) -> None:
        """Before the first batch: what nobody may have touched since the load."""
        self._begun = state.of_random()
        self._tensors = self._by_tensor()
        self._write(
            "begin",
            place,
            parameters=self._parameters(),
            buffers=self._buffers(),
            fields=self._fields(),
            options={name: state.options_of(o) for name, o in self._optimizers.items()},
            built=self._built(),
            moments={name: state.of_moments(o) for name, o in self._optimizers.items()},
            steps={name: state.steps_of(o) for name, o in self._optimizers.items()},
            states=self._states(of=self._fresh),
            random=self._begun if RANDOM_PART in self._others else {},
        )

    def note_left_out(self, *, draws_samples: bool) -> None:
        """At the end of the first step: what took part in it, and was not handed over."""
        now = state.of_random() if RANDOM_PART not in self._others else {}
        drawn = [stream for stream, found in self._begun.items() if now.get(stream, found) != found]
        parts = left_out(self._parts, self._memory.optimizers, drawn_from=drawn, draws_samples=draws_samples)
        if parts:
            self._tell("left_out", parts=parts)

    def at_first_step(self, place: Place) -> None:
        """When optimizers have stepped for the first time: what they were about to train, and what with."""
        found: dict[str, dict[str, Any]] = {}
        for i, began in enumerate(self._memory.beginnings):
            for fact, value in began.items():
                found.setdefault(fact, {})[_trained(i)] = value
        self._write("step", place, fields=self._fields(), **found)

    def watch_inputs(self, steps_taken: int, samples: Sequence[int]) -> None:
        """Before a step: look at what the models are given in it, if it is one of the first behind a checkpoint."""
        if steps_taken < _WATCHED_STEPS:
            self._inputs.watch(len(samples))

    def note_inputs(self, step: int) -> None:
        """Behind a step: what they were given."""
        digest, rows, of_samples = self._inputs.take()
        if digest:
            self._tell("fed", step=step, digest=digest, rows=rows, of_samples=of_samples)

    def _write(self, at: HeldAt, place: Place, **found: Any) -> None:
        per_rank = [name for name, part in self._others.items() if is_per_rank(part)]
        self._tell("held", rank=self._rank, at=at, per_rank=per_rank, **place, **found)

    def _parameters(self) -> dict[str, str]:
        return {name: state.together(tensors) for name, tensors in self._tensors.items()}

    def _by_tensor(self) -> dict[str, dict[str, bytes]]:
        return {
            name: {tensor: state.of_tensor(values) for tensor, values in model.named_parameters()}
            for name, model in self._models.items()
        }

    def _moved(self) -> dict[str, int]:
        before, self._tensors = self._tensors, self._by_tensor()
        return {
            name: sum(digest != before.get(name, {}).get(tensor) for tensor, digest in tensors.items())
            for name, tensors in self._tensors.items()
        }

    def _fields(self) -> dict[str, dict[str, str]]:
        found = {name: state.of_fields(part) for name, part in self._others.items() if name != RANDOM_PART}
        for name, held in self.objects.items():
            with suppress(Exception):  # it is none of ours, and may not be ready to tell its state
                if digest := state.of_state(held.state_dict()):
                    found[OUTSIDE + name] = {"": digest}
        return {name: fields for name, fields in found.items() if fields}

    def _buffers(self) -> dict[str, str]:
        return {name: state.of_tensors(_buffers(model, saved=True)) for name, model in self._models.items()}

    def _built(self) -> dict[str, str]:
        return {
            f"{model}.{name}": state.of_tensors([("", buffer)])
            for model, part in self._models.items()
            for name, buffer in _buffers(part, saved=False)
        }

    def _states(self, of: Collection[str] | None = None) -> dict[str, str]:
        parts = {name: part for name, part in self._others.items() if of is None or name in of}
        found = {name: state.of_state(part.state_dict()) for name, part in parts.items()}
        return {name: digest for name, digest in found.items() if digest}


class Inputs:
    """What models are given, as a digest of all tensors of all their calls in a step, and how many rows that is.

    A compiled model is not looked at: its trace would break at the hook.
    """

    def __init__(self, models: Mapping[str, torch.nn.Module]) -> None:
        self._models = models
        self._hooks: list[Any] = []
        self._found = blake2b(digest_size=16)
        self._rows: dict[str, int] = {}
        self._batch = 0
        self._of_samples: dict[str, list[str]] = {}

    def watch(self, batch: int) -> None:
        """Look at them until :meth:`take`, in a step that has a batch of so many samples."""
        self.take()
        self._batch = batch
        self._hooks = [
            model.register_forward_pre_hook(partial(self._look, name), with_kwargs=True)
            for name, model in self._models.items()
        ]

    def take(self) -> tuple[str, dict[str, int], dict[str, list[str]]]:
        """What they were given since :meth:`watch`, empty: nothing that was seen; the rows of each; and each row."""
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
            self._found.update(state.of_tensor(tensor))
        if tensors and name not in self._rows and tensors[0].dim() and len(tensors[0]) == self._batch:
            self._of_samples[name] = state.of_rows(tensors[0])
        if tensors:
            self._rows[name] = self._rows.get(name, 0) + (len(tensors[0]) if tensors[0].dim() else 0)


def objects_of(frame: FrameType, parts: Mapping[str, Any]) -> dict[str, Any]:
    """What a body holds in its variables, and in the attributes of those, that has a state and is none of the parts.

    Not what is made of the parts alone, as a model in DistributedDataParallel is, nor what has no state.
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

    def has_state(of: type) -> bool:
        return callable(getattr(of, "state_dict", None)) and callable(getattr(of, "load_state_dict", None))

    found: dict[str, Any] = {}
    for name, held in {**variables, **inner}.items():
        if id(held) in known or isinstance(held, type) or not has_state(type(held)):
            continue
        if isinstance(held, torch.nn.Module):
            parameters = list(held.parameters())
            if parameters and all(id(parameter) in known for parameter in parameters):
                continue
        known.add(id(held))
        found[name] = held
    return found


def is_per_rank(part: object) -> bool:
    """Whether each rank has a state of its own in this part, and gets its own back."""
    return bool(getattr(part, "per_rank", False))


def _trained(index: int) -> str:
    return f"{STEPS} ({index + 1})" if index else STEPS


def _buffers(model: torch.nn.Module, *, saved: bool) -> list[tuple[str, torch.Tensor]]:
    kept = model.state_dict()
    return [(name, buffer) for name, buffer in model.named_buffers() if (name in kept) is saved]
