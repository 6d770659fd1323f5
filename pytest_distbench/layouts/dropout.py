"""Dropout: switched off to compare values, its masks recorded to compare random numbers."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn import functional

_ATTENTION = "scaled_dot_product_attention"
_MASKS = ("dropout", "dropout1d", "dropout2d", "dropout3d")
_ALL = (*_MASKS, "alpha_dropout", "feature_alpha_dropout")


@contextmanager
def without_dropout() -> Iterator[None]:
    """Switch dropout off meanwhile, in modules of torch.nn and in its functions."""
    attend = getattr(functional, _ATTENTION)

    def attended(*args: Any, **kwargs: Any) -> Any:
        plain = {name: value for name, value in kwargs.items() if name != "dropout_p"}
        return attend(*args[:4], *(0.0 for _ in args[4:5]), *args[5:], **plain)

    def kept(input: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:  # noqa: A002 torch's name of it
        return input

    with _replaced({**dict.fromkeys(_ALL, kept), _ATTENTION: attended}):
        yield


@contextmanager
def masks_kept(masks: list[str]) -> Iterator[None]:
    """Append shape and SHA-256 of each dropout mask that is drawn meanwhile and drops anything."""

    def keeping(real: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        signature = inspect.signature(real)

        def dropped(*args: Any, **kwargs: Any) -> torch.Tensor:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            of: torch.Tensor
            of, p, training, inplace = (given.arguments[name] for name in ("input", "p", "training", "inplace"))
            if not training or not p:
                return of
            mask = real(torch.ones_like(of), p, training=True)
            own = (mask.to_local() if isinstance(mask, DTensor) else mask).detach() != 0
            if not own.all():
                masks.append(f"{tuple(own.shape)} {hashlib.sha256(own.cpu().numpy().tobytes()).hexdigest()}")
            return of.mul_(mask) if inplace else of * mask

        return dropped

    with _replaced({name: keeping(getattr(functional, name)) for name in _MASKS}):
        yield


@contextmanager
def _replaced(functions: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    real = {name: getattr(functional, name) for name in functions}
    for name, function in functions.items():
        setattr(functional, name, function)
    try:
        yield
    finally:
        for name, function in real.items():
            setattr(functional, name, function)
