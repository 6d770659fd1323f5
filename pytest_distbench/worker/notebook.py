"""Notebook, what one rank has recorded so far; and the checks of arguments that a body passes to ``rank.*``.

A check returns the argument in its final type, or raises at the body's line with the call, what was wanted and found.
"""

from __future__ import annotations

import contextlib
import math
import numbers
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar, get_args

import numpy
import torch

from pytest_distbench.errors import ConfigurationError, RecordingError, line_outside, show
from pytest_distbench.records import metric
from pytest_distbench.records.iteration import UNACCOUNTED
from pytest_distbench.records.kinds import METRIC_KINDS, Better, Reduce
from pytest_distbench.records.metric import LARGEST_NUMBER, Bound, Observation, Scalar, metric_key
from pytest_distbench.records.wanted import LARGEST_WHOLE, Wanted, number, one_of, text, whole

T = TypeVar("T")

_PHASE = text(without="[]/")
_PHASE_KIND = one_of(("info", "lower"))
_SCALAR: Wanted[Scalar] = Wanted(
    f"True, False, printable text, or a number: finite, up to {LARGEST_NUMBER:g}, a whole one up to {LARGEST_WHOLE}",
    metric.as_scalar,
)

_NO_NUMBER = (TypeError, ValueError, ArithmeticError, RuntimeError)

_NO_SERIES = (str, bytes, bytearray, Mapping, set, frozenset)


class Notebook:
    """What one rank has recorded so far, each metric once, in order.

    Numbers that a script records repeatedly under one name are a series, noted at its end. Remarks are sentences about
    all of them.
    """

    def __init__(self) -> None:
        self.observations: list[Observation] = []
        self.remarks: list[str] = []
        self.is_of_script = False
        self._keys: set[str] = set()
        self._collected: dict[str, tuple[str, list[float], dict[str, Any]]] = {}

    def expect_new(self, name: str, at: Mapping[str, Scalar]) -> str:
        """Key of a metric; RecordingError if it was recorded before."""
        key = metric_key(name, dict(at))
        if key in self._keys:
            raise RecordingError(
                f"{key!r} is recorded twice: give each its own name or point (at=..., or with rank.point(...)); a "
                "phase in a loop of rank.timed or of a goal is one series"
            )
        return key

    def note(
        self,
        name: str,
        value: object,
        *,
        unit: str = "",
        better: Better = "info",
        reduce: Reduce | None = None,
        at: Mapping[str, Scalar],
        identity: Mapping[str, Scalar] | None = None,
        facts: Mapping[str, Scalar] | None = None,
        signals: Mapping[str, list[float]] | None = None,
        bounds: Sequence[Bound] = (),
        **place: Any,
    ) -> None:
        """Check and keep one observation.

        Arguments as of ``rank.record``; ``place``: a phase's fields of the observation.
        """
        call = f"record({show(name)})"
        unit = check_text(call, "unit", unit)
        point, identity = check_scalars(call, "at", at), check_scalars(call, "identity", identity)
        facts = check_scalars(call, "facts", facts)
        key = self.expect_new(name, point)
        kind = METRIC_KINDS[check_choice(call, "better", better, METRIC_KINDS)]
        if reduce is not None:
            check_choice(call, "reduce", reduce, get_args(Reduce))
        values, is_series = check_values(f"record({key!r})", value)
        if self.is_of_script and values and not is_series:
            given = {"unit": unit, "reduce": reduce, "at": point, "identity": identity, "facts": facts}
            self._collect(key, name, values[0], {**given, "better": better, "bounds": bounds, **place})
            return
        is_own_clock = bool(signals) or name.startswith(metric.PHASE)
        why = "" if is_own_clock else kind.why_impossible(values, unit, is_series=is_series)
        if why and (kind.is_judged or bounds):
            raise RecordingError(f"record({key!r}): {why}: was the time read, and in this order? (info is not judged)")
        if kind.is_of_training:
            _check_training(f"record({key!r}, better={better!r})", better, values, identity, is_series=is_series)
            for fact in facts.keys() & {"every", "evaluation_samples"}:  # the rules for trainings would miss it
                refuse(call, f"{fact} in identity=, as it defines the number", f"facts={dict(facts)}")
        self.observations.append(
            Observation(
                name=name,
                unit=unit,
                better=str(better),
                reduce=reduce or kind.reduce,
                values=values,
                is_series=is_series,
                at=point,
                identity=identity,
                facts=facts,
                secondary=dict(signals or {}),
                bounds=list(bounds),
                **place,
            )
        )
        self._keys.add(key)

    def finish(self) -> None:
        self.is_of_script = False
        for name, values, options in self._collected.values():
            is_series = len(values) > 1 or METRIC_KINDS[options["better"]].shape == "series"
            self.note(name, values if is_series else values[0], **options)

    def _collect(self, key: str, name: str, value: float, options: dict[str, Any]) -> None:
        _, values, known = self._collected.setdefault(key, (name, [], options))
        if known != options:
            raise RecordingError(
                f"{key!r} is recorded with {_differing(options, known)}, and with {_differing(known, options)} before"
            )
        values.append(value)


def _differing(these: Mapping[str, Any], those: Mapping[str, Any]) -> str:
    found = {name: value for name, value in these.items() if value and those[name] != value}
    return ", ".join(f"{name}={value!r}" for name, value in found.items()) or "fewer arguments"


def _check_training(
    call: str, better: Better, values: list[float], identity: Mapping[str, Scalar], *, is_series: bool
) -> None:
    kind = METRIC_KINDS[better]
    if kind.shape == "tensors":
        raise RecordingError(f"{call}: the plugin records tensors itself, of whatever an optimizer trains")
    if is_series != (kind.shape == "series"):
        wanted, got = ("a series, one value per step", "one number") if not is_series else ("one number", "a series")
        raise RecordingError(f"{call}: wanted {wanted}, got {got}")
    if kind.counts_steps:
        if any(v < 0 or v % 1 for v in values):
            refuse(call, "whole steps, 0 or more", values[0])
        every = identity.get("every", 1)
        if isinstance(every, (bool, str)) or not every > 0:
            refuse(call, "every in identity to be the steps between evaluations, above 0", every)
    if kind.has_floor and "evaluation_samples" in identity:
        samples = identity["evaluation_samples"]
        if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
            refuse(call, "evaluation_samples in identity to be a whole number, at least 1", samples)
        if any(not 0 <= v <= 1 for v in values):
            raise RecordingError(f"{call}: {values[0]:g} is no share of {samples} samples; wanted 0 to 1")


def refuse(call: str, wanted: str, found: object) -> NoReturn:
    kind = "" if found is None else f" ({type(found).__name__})"
    raise RecordingError(f"{call}: wanted {wanted}, found {show(found)}{kind}")


def _check(call: str, wanted: Wanted[T], argument: str, value: object) -> T:
    try:
        return wanted(argument, value)
    except ConfigurationError as error:
        raise RecordingError(f"{call}: {error}") from None


def check_name(call: str, argument: str, value: object) -> str:
    """Text that can stand before a point in a key, as in ``latency[message_bytes=4]``."""
    return _check(call, metric.NAME, argument, value)


def check_phase(name: object, better: object) -> str:
    """The name of a phase. Valid names cost little, as a short step has many phases."""
    found = _PHASE.take(name)
    if found is None or found == UNACCOUNTED or _PHASE_KIND.take(better) is None:
        call = f"phase({show(name)})"
        _check(call, _PHASE, "name", name)
        _check(call, _PHASE_KIND, "better", better)
        raise RecordingError(f"{call}: the table of phases has a row of that name; give it another one")
    return found


def check_metric(call: str, value: object) -> str:
    name = check_name(call, "name", value)
    if metric.is_own_name(name):
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
    if abs(found) >= LARGEST_WHOLE:  # an integer with all its digits, as far as it has 64 bits; JSON has no more
        with contextlib.suppress(*_NO_NUMBER):
            whole = operator.index(value)  # type: ignore[arg-type] # that is the question
            return whole if -(2**63) <= whole < 2**64 else found
    return found


def real(value: object) -> float | None:
    """A real number as a float, also one that is not finite, or None."""
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
    """Whether it is True or False, which Python counts as numbers: a mistake where a number is wanted."""
    if isinstance(value, torch.Tensor):
        return value.dtype == torch.bool
    return isinstance(value, bool | numpy.bool_) or (isinstance(value, numpy.ndarray) and value.dtype == numpy.bool_)


def _is_single(value: torch.Tensor | numpy.ndarray[Any, Any]) -> bool:
    is_useless = value.is_complex() or value.is_meta if isinstance(value, torch.Tensor) else numpy.iscomplexobj(value)
    return not is_useless and math.prod(value.shape) == 1


def check_values(call: str, value: object) -> tuple[list[float], bool]:
    """The numbers given to ``rank.record``, [] for None; and whether they are a series."""
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
    """At least one number, not necessarily finite, from a list, a tuple or an array of one dimension."""
    is_flat = not isinstance(value, torch.Tensor | numpy.ndarray) or len(value.shape) == 1
    found: list[float | None] = []
    if isinstance(value, Iterable) and not isinstance(value, _NO_SERIES) and is_flat:
        found = [real(number) for number in value]
    numbers = [number for number in found if number is not None]
    if not numbers or len(numbers) < len(found):
        refuse(call, "a list of numbers, not empty", value)
    return numbers


def check_unread(call: str, argument: str, value: object) -> torch.Tensor | float:
    """Check that a value is a number or a tensor of one element, without reading it: a device may still compute it."""
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
    """Bounds from ``at_least=`` and ``at_most=``, with the line that gave them to the function ``by``."""
    if at_least is None and at_most is None:
        return []
    try:
        unit = check_text(call, "unit", unit)
        return metric.bounds_between(at_least, at_most, unit=unit, where=f"{by} at {line_outside()}")
    except ConfigurationError as error:
        raise RecordingError(f"{call}: {error}") from None


def check_scalars(call: str, argument: str, value: object) -> dict[str, Scalar]:
    """Names with a number, a text, True or False each; {} for None."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        refuse(call, f"{argument} to be a mapping of names to numbers and texts", value)
    return {
        _check(call, metric.AXIS, f"a name in {argument}", k): _check(call, _SCALAR, f"{argument}[{k!r}]", v)
        for k, v in value.items()
    }


def check_point(call: str, value: object) -> dict[str, Scalar]:
    """``at=``: scalars whose texts are short, as they are part of the metric's key."""
    point = check_scalars(call, "at", value)
    for name, inner in point.items():
        if isinstance(inner, str):
            _check(call, text(longest=metric.LONGEST_TEXT, may_be_empty=True), f"at[{name!r}]", inner)
    return point
