"""Highest precision of a network: float64, but for operators, or a whole network, that only know float32.

Values in float32 get a random error of about one rounding. A float64 reference that rounds as the controls do would be
nearer to them than to a layout, and their distance from it would be no bound.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class Precision:
    """Precision in which a float64 reference computes.

    Attributes:
        dtype: dtype of its inputs and parameters.
        narrow: names of operators without float64.
    """

    def __init__(self, dtype: torch.dtype = torch.float64, mode: type[_Narrow] | None = None) -> None:
        self.dtype = dtype
        self.narrow: set[str] = set()
        self._mode = mode

    @contextmanager
    def computing(self, model: nn.Module) -> Iterator[None]:
        """Compute in this precision meanwhile; parameters of the network are in float64 before and after."""
        drawn = torch.Generator().manual_seed(0)
        with _in_float32(model, drawn) if self.dtype == torch.float32 else self._mixed(drawn):
            yield

    def words(self) -> str:
        """Say what has no float64, or return ""."""
        if self.dtype == torch.float32:
            return "the values of one rank are in float32, as the network has no float64"
        names = " and ".join(sorted(self.narrow))
        return f"the values of one rank have {names} in float32, as there is none in float64" if names else ""

    @contextmanager
    def _mixed(self, drawn: torch.Generator) -> Iterator[None]:
        if self._mode is None:
            yield
            return
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64 if self._mode is _Mixed else before)
        try:
            with self._mode(self.narrow, drawn):
                yield
        finally:
            torch.set_default_dtype(before)


def highest(compute: Callable[[Precision], object]) -> Precision:
    """Return the highest precision in which ``compute`` works: float64, float64 with some float32, or float32."""
    for tried, precision in ((Precision(mode=_Refused), Precision()), (mixed := Precision(mode=_Mixed), mixed)):
        try:
            compute(tried)
        except Exception:  # noqa: BLE001 what checks of a network's own raise is not known
            continue
        return precision
    compute(found := Precision(torch.float32))
    return found


class _Narrow(TorchDispatchMode):
    """Base of modes that handle float32; ``narrow`` gets the names of operators without float64."""

    def __init__(self, narrow: set[str], drawn: torch.Generator) -> None:
        super().__init__()
        self._narrow = narrow
        self._drawn = drawn


class _Refused(_Narrow):
    """Raises where a float32 is made: norms and routers often ask for one by name, to avoid 16 bits."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if _has(pytree.tree_leaves(found), torch.float32):
            raise RuntimeError(f"{func} makes a float32")
        return found


class _Mixed(_Narrow):
    """Makes float64 of each float32 that is asked for or meets float64; operators without float64 get float32."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [*args, *kwargs.values()]
        given += [each for value in given if isinstance(value, list | tuple) for each in value]
        if not _has(given, torch.float32) and not any(value is torch.float32 for value in given):
            with contextlib.suppress(RuntimeError):  # most operators need no tree
                return func(*args, **kwargs)
        leaves, tree = pytree.tree_flatten((args, kwargs))
        leaves = [torch.float64 if leaf is torch.float32 else leaf for leaf in leaves]
        can_cast = not func._schema.is_mutable
        if can_cast and _has(leaves, torch.float32) and _has(leaves, torch.float64):
            leaves = _cast(leaves, torch.float32, torch.float64)

        def call(leaves: Sequence[Any]) -> Any:
            args, kwargs = pytree.tree_unflatten(leaves, tree)
            return func(*args, **kwargs)

        try:
            return call(leaves)
        except RuntimeError:
            if not can_cast or not _has(leaves, torch.float64):
                raise
            found, made = pytree.tree_flatten(call(_cast(leaves, torch.float64, torch.float32)))
        self._narrow.add(func.name().partition("::")[2].partition(".")[0])
        perturbed = [_perturbed(each, self._drawn) if _is(each, torch.float32) else each for each in found]
        return pytree.tree_unflatten(perturbed, made)


@contextmanager
def _in_float32(model: nn.Module, drawn: torch.Generator) -> Iterator[None]:
    parameters = [p for p in model.parameters() if p.dtype == torch.float64]
    kept = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        for parameter in parameters:
            parameter.copy_(_perturbed(parameter, drawn))
    model.float()
    try:
        yield
    finally:
        model.double()
        with torch.no_grad():
            for parameter, value in zip(parameters, kept, strict=True):
                parameter.copy_(value)


def _perturbed(tensor: torch.Tensor, drawn: torch.Generator) -> torch.Tensor:
    """Return a float32 tensor in float64, with random relative errors of at most one rounding of float32."""
    error = torch.rand(tensor.shape, generator=drawn, dtype=torch.float64) * 2 - 1
    return tensor.double() * (1 + error * torch.finfo(torch.float32).eps)


def _is(value: object, dtype: torch.dtype) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == dtype


def _has(values: Sequence[object], dtype: torch.dtype) -> bool:
    return any(_is(value, dtype) for value in values)


def _cast(values: Sequence[Any], dtype: torch.dtype, to: torch.dtype) -> list[Any]:
    return [value.to(to) if _is(value, dtype) else value for value in values]
