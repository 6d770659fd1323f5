"""Checks of what a body gives to ``rank.*``: each argument as it is used, or an error.

An error says the call, what was wanted and what was found. A body is told where it went wrong, at its own line, not
when the ranks' numbers are merged or stored.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, TypeVar

import numpy
import torch

from pytest_distbench.errors import ConfigurationError, RecordingError, line_outside, show
from pytest_distbench.records.iteration import UNACCOUNTED
from pytest_distbench.records.metric import (
    LARGEST_NUMBER,
    LONGEST_TEXT,
    Bound,
    Scalar,
    as_scalar,
    bounds_between,
    is_own_name,
)
from pytest_distbench.records.wanted import LARGEST_WHOLE, Wanted, number, one_of, text, whole

T = TypeVar("T")

_AXIS = text(without="[]=,")
_PHASE = text(without="[]/")
_PHASE_KIND = one_of(("info", "lower"))
_SCALAR: Wanted[Scalar] = Wanted(
    f"True, False, printable text, or a number: finite, up to {LARGEST_NUMBER:g}, a whole one up to {LARGEST_WHOLE}",
    as_scalar,
)

_NO_NUMBER = (TypeError, ValueError, ArithmeticError, RuntimeError)
"""What float() and index() raise, torch's among them."""

_NO_SERIES = (str, bytes, bytearray, Mapping, set, frozenset)
"""Could be gone through, and are no numbers in an order."""


def refuse(call: str, wanted: str, found: object) -> NoReturn:
    kind = "" if found is None else f" ({type(found).__name__})"
    raise RecordingError(f"{call}: wanted {wanted}, found {show(found)}{kind}")


def _check(call: str, wanted: Wanted[T], argument: str, value: object) -> T:
    try:
        return wanted(argument, value)
    except ConfigurationError as error:
        raise RecordingError(f"{call}: {error}") from None


def check_name(call: str, argument: str, value: object) -> str:
    """Text that can stand before a point in a key: ``latency`` in ``latency[message_bytes=4]``."""
    return _check(call, text(without="[]"), argument, value)


def check_phase(name: object, better: object) -> str:
    """The name of a phase, and how it is judged. A short step has many: where both are right it costs little."""
    found = _PHASE.take(name)
    if found is None or found == UNACCOUNTED or _PHASE_KIND.take(better) is None:
        call = f"phase({show(name)})"
        _check(call, _PHASE, "name", name)
        _check(call, _PHASE_KIND, "better", better)
        raise RecordingError(f"{call}: the table of phases has a row of that name; give it another one")
    return found


def check_metric(call: str, value: object) -> str:
    name = check_name(call, "name", value)
    if is_own_name(name):
        raise RecordingError(f"{call}: the plugin itself records a metric of that name; choose another name")
    return name


def check_text(call: str, argument: str, value: object) -> str:
    return _check(call, text(may_be_empty=True), argument, value)


def check_choice(call: str, argument: str, value: object, choices: Iterable[str]) -> str:
    return _check(call, one_of(choices), argument, value)


def check_whole(call: str, argument: str, value: object, *, least: int, most: int = LARGEST_WHOLE) -> int:
    return _check(call, whole(least, most), argument, value)


def check_number(call: str, argument: str, value: object) -> float:
    """A finite number; numpy's and torch's count as Python's, True and False do not."""
    found = _check(call, number(least=-LARGEST_NUMBER, most=LARGEST_NUMBER, read=real), argument, value)
    return found if abs(found) < LARGEST_WHOLE else _in_whole(value, found)


def _in_whole(value: object, as_float: float) -> float:
    """A large integer with all its digits, as far as it has 64 bits; JSON has no more."""
    try:
        whole = operator.index(value)  # type: ignore[arg-type] # that is the question
    except _NO_NUMBER:
        return as_float
    return whole if -(2**63) <= whole < 2**64 else as_float


def real(value: object) -> float | None:
    """A real number as a float, not finite ones too; None where the value is none."""
    is_of_other_kind = isinstance(value, str | bytes | bytearray) or is_yes_or_no(value)
    is_complex = isinstance(value, numbers.Complex) and not isinstance(value, numbers.Real)
    if is_of_other_kind or is_complex:
        return None
    if isinstance(value, torch.Tensor | numpy.ndarray) and not _is_single(value):
        return None
    if isinstance(value, torch.Tensor):
        value = value.detach()  # torch warns about a number that has a gradient
    try:
        return float(value)  # type: ignore[arg-type] # that is the question
    except _NO_NUMBER:
        return None


def is_yes_or_no(value: object) -> bool:
    """True and False count as numbers in Python; where a number is wanted they are a mistake."""
    if isinstance(value, torch.Tensor):
        return value.dtype == torch.bool
    return isinstance(value, bool | numpy.bool_) or (isinstance(value, numpy.ndarray) and value.dtype == numpy.bool_)


def _is_single(value: torch.Tensor | numpy.ndarray[Any, Any]) -> bool:
    """Whether it holds one real number; a meta tensor holds none."""
    is_useless = value.is_complex() or value.is_meta if isinstance(value, torch.Tensor) else numpy.iscomplexobj(value)
    return not is_useless and math.prod(value.shape) == 1


def check_values(call: str, value: object) -> tuple[list[float], bool]:
    """What ``rank.record`` is given: numbers, none for "has no value"; and whether they are a series."""
    if value is None:
        return [], False
    if isinstance(value, torch.Tensor | numpy.ndarray):
        if len(value.shape) > 1 or (isinstance(value, torch.Tensor) and value.is_meta):
            raise RecordingError(
                f"{call}: wanted a number or a series of numbers, found an array of shape {list(value.shape)}"
            )
        value = value.tolist()
    if isinstance(value, _NO_SERIES):
        refuse(call, "a number or a series of numbers", value)
    if not isinstance(value, Iterable):
        return [check_number(call, "value", value)], False
    values = [check_number(call, f"element {i} of the series", v) for i, v in enumerate(value)]
    if not values:
        raise RecordingError(f"{call}: the series is empty: nothing was measured")
    return values, True


def check_several(call: str, value: object) -> list[float]:
    """At least one number, which need not be finite: a list, a tuple, an array of one dimension."""
    is_flat = not isinstance(value, torch.Tensor | numpy.ndarray) or len(value.shape) == 1
    found: list[float | None] = []
    if isinstance(value, Iterable) and not isinstance(value, _NO_SERIES) and is_flat:
        found = [real(number) for number in value]
    numbers = [number for number in found if number is not None]
    if not numbers or len(numbers) < len(found):
        refuse(call, "a list of numbers, not empty", value)
    return numbers


def check_unread(call: str, argument: str, value: object) -> torch.Tensor | float:
    """A number, or a tensor of one element. That is not read: its device may still compute it."""
    if not isinstance(value, torch.Tensor):
        number = real(value)
        if number is None:
            refuse(call, f"{argument} to be a number or a tensor of one element", value)
        return number
    if not _is_single(value) or is_yes_or_no(value):
        raise RecordingError(
            f"{call}: wanted {argument} to be a number or a tensor of one element, found one of shape "
            f"{list(value.shape)} and {value.dtype}: take its mean"
        )
    return value.detach().reshape(())


def check_bounds(call: str, at_least: object, at_most: object, *, unit: object, by: str) -> list[Bound]:
    """``at_least=`` and ``at_most=`` of a number, and the line that gave them to the function ``by``."""
    if at_least is None and at_most is None:
        return []
    try:
        return bounds_between(at_least, at_most, unit=check_text(call, "unit", unit), where=f"{by} at {line_outside()}")
    except ConfigurationError as error:
        raise RecordingError(f"{call}: {error}") from None


def check_scalars(call: str, argument: str, value: object) -> dict[str, Scalar]:
    """Names with a number, a text or True and False each: a point, an identity, facts. None is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        refuse(call, f"{argument} to be a mapping of names to numbers and texts", value)
    return {
        _check(call, _AXIS, f"a name in {argument}", k): _check(call, _SCALAR, f"{argument}[{k!r}]", v)
        for k, v in value.items()
    }


def check_point(call: str, value: object) -> dict[str, Scalar]:
    """``at=``: as other scalars, with short texts: they are part of the metric's key."""
    point = check_scalars(call, "at", value)
    for name, inner in point.items():
        if isinstance(inner, str):
            _check(call, text(longest=LONGEST_TEXT, may_be_empty=True), f"at[{name!r}]", inner)
    return point
