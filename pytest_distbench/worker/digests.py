"""Digests of what a training holds: parameters, what optimizers remember, random streams, and any state of others.

Two states have one digest where every byte of them is equal. Where they differ is not told, only that they do.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

_SIZE = 16
"""Bytes of a digest."""

_ROW_SIZE = 6
_NO_OPTIONS = ("lr", "initial_lr", "params")
_PLAIN = (bool, int, float, str, tuple)

_STEP = "step"
"""The slot in which optimizers of torch count their steps."""


def of_tensor(tensor: torch.Tensor) -> bytes:
    """Of a tensor's type, shape and values, wherever it lies."""
    values = tensor.detach()
    values = getattr(values, "full_tensor", lambda: values)()  # of a tensor in shards, a collective call
    values = values.cpu().contiguous()
    found = blake2b(f"{values.dtype} {tuple(values.shape)} ".encode(), digest_size=_SIZE)
    if values.numel():
        found.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return found.digest()


def of_tensors(named: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Of several, in their order."""
    return together({name: of_tensor(tensor) for name, tensor in named})


def together(named: Mapping[str, bytes]) -> str:
    """One digest of those of several tensors."""
    found = blake2b(digest_size=_SIZE)
    for name, digest in named.items():
        found.update(name.encode() + b"\0" + digest)
    return found.hexdigest()


def of_rows(tensor: torch.Tensor) -> list[str]:
    """Of each row of a tensor, in a few letters."""
    rows = tensor.detach().cpu().contiguous().reshape(len(tensor), -1)
    return [blake2b(row.view(torch.uint8).numpy().data, digest_size=_ROW_SIZE).hexdigest() for row in rows]


def of_fields(part: object) -> dict[str, str]:
    """Of each number, tensor, or container of such, that an object has as an attribute, by name; a count is itself."""
    fields = {} if isinstance(part, Mapping | list | tuple) else getattr(part, "__dict__", {})
    kept = {name: value for name, value in fields.items() if not isinstance(value, str | bool | None)}
    found = {name: str(value) if isinstance(value, int) else of_state(value) for name, value in kept.items()}
    return {name: digest for name, digest in found.items() if digest}


def options_of(optimizer: Optimizer) -> list[str]:
    """The options of an optimizer's groups in words, such as betas and weight decay; its rate is none of them."""
    return [
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for group in optimizer.param_groups
        for name, value in group.items()
        if name not in _NO_OPTIONS and isinstance(value, _PLAIN)
    ]


def of_state(state: object) -> str:
    """Of what ``state_dict()`` returns: containers, tensors, arrays, numbers, texts. Empty: it holds other things."""
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
    """Of what an optimizer remembers of each parameter, by slot: ``exp_avg``. The count of its steps is none of it."""
    slots: dict[str, Any] = {}
    for index, parameter in enumerate(_parameters(optimizer)):
        for slot, value in optimizer.state.get(parameter, {}).items():
            if slot != _STEP and isinstance(value, torch.Tensor):
                slots.setdefault(str(slot), blake2b(digest_size=_SIZE)).update(f"{index} ".encode() + of_tensor(value))
    return {slot: found.hexdigest() for slot, found in sorted(slots.items())}


def steps_of(optimizer: Optimizer) -> str:
    """The steps that an optimizer has counted, those of all its parameters: ``40``; empty: it counts none."""
    counted = (optimizer.state.get(parameter, {}).get(_STEP) for parameter in _parameters(optimizer))
    return ", ".join(dict.fromkeys(f"{float(steps):g}" for steps in counted if steps is not None))


def of_parameters(optimizer: Optimizer) -> str:
    """Of the parameters that an optimizer trains."""
    return of_tensors((str(index), parameter) for index, parameter in enumerate(_parameters(optimizer)))


def rates_of(optimizer: Optimizer) -> list[float]:
    """The learning rate of each group of an optimizer."""
    return [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def of_random() -> dict[str, str]:
    """Of every random stream of this process that a training may draw from, by name."""
    found = {"torch": of_state(torch.get_rng_state()), "python": of_state(random.getstate())}
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        found["numpy"] = of_state(numpy.get_state())
    if torch.cuda.is_initialized():
        found["cuda"] = of_state(torch.cuda.get_rng_state_all())
    return found
