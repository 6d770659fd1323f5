"""Bounds: absolute limits of a metric, which need no baseline, and as people write them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pytest_distbench.errors import ConfigurationError, show
from pytest_distbench.records.record import Record
from pytest_distbench.units import as_float, convert, parse_quantity

Side = Literal["most", "least"]
"""Whether a value may be at most, or at least, what the bound says."""

BoundValue = float | str
"""As people write one: a number in the metric's own unit, or a text: ``"200us"``, ``">= 10 GB/s"``."""

_SIGNS: dict[str, Side] = {"<=": "most", ">=": "least"}
_WANTED = "wanted a number, or a text such as '200us', '>= 10 GB/s' or '>= 0.5 and <= 2.5'"


@dataclass(frozen=True, slots=True)
class AskedBound:
    """A bound as a marker or a baseline file says it, before it is known what is measured.

    Attributes:
        metric: its key, or a name that stands for all its points.
        value: as it was written; :func:`terms_of` can read it.
        where: it was set.
    """

    metric: str
    value: BoundValue
    where: str


class Term(NamedTuple):
    """One limit that was written.

    Attributes:
        side: None where no sign says it.
        value: in the unit.
        unit: empty: the metric's own.
    """

    side: Side | None
    value: float
    unit: str


def terms_of(given: object) -> list[Term]:
    """Read a bound as people write it; a text may give both sides: ``">= 0.5 and <= 2.5"``."""
    if not isinstance(given, str):
        number = as_float(given)
        if number is None or not math.isfinite(number):
            raise ConfigurationError(f"{show(given)} is no bound: {_WANTED}")
        return [Term(None, number, "")]
    terms = []
    for part in re.split(r"\s+and\s+", given.strip()):
        sign = next((sign for sign in _SIGNS if part.startswith(sign)), "")
        try:
            value, unit = parse_quantity(part.removeprefix(sign))
        except ConfigurationError:
            raise ConfigurationError(f"{show(given)} is no bound: {_WANTED}") from None
        terms.append(Term(_SIGNS.get(sign), value, unit))
    if len(terms) > 1 and sorted(str(term.side) for term in terms) != ["least", "most"]:
        raise ConfigurationError(f"{show(given)} is no bound: {_WANTED}")
    return terms


class Bound(Record, frozen=True, kw_only=True):
    """A limit of one metric's value, in the metric's unit."""

    side: Side
    value: float
    where: str
    """Where it was set: ``rank.record at test_a.py:12``."""
    rate: str = ""
    """As it was written, where that is the rate of a sweep: ``busbw >= 10 GB/s``."""
    is_default: bool = False
    """The plugin's own: one of the test or of a baseline's file, of the same side, replaces it."""
    doubt: str = ""
    """What is asked of a number that is beyond it in each launch, which then is inconclusive; empty: beyond."""

    def holds(self, value: float | None) -> bool:
        """Whether a value keeps to it. None, which says that there is no value, never does."""
        if value is None:
            return False
        return value <= self.value if self.side == "most" else value >= self.value


def bounds_between(at_least: object, at_most: object, *, unit: str, where: str) -> list[Bound]:
    """The bounds that the arguments ``at_least=`` and ``at_most=`` of a call give; None is none."""
    sides: tuple[tuple[str, Side, object], ...] = (("at_least", "least", at_least), ("at_most", "most", at_most))
    found = [
        Bound(side=side, value=_one_value(name, given, unit), where=where)
        for name, side, given in sides
        if given is not None
    ]
    if len(found) == len(sides) and found[0].value > found[1].value:
        raise ConfigurationError(f"at_least={show(at_least)} is more than at_most={show(at_most)}")
    return found


def _one_value(name: str, given: object, unit: str) -> float:
    try:
        terms = terms_of(given)
        if len(terms) == 1 and terms[0].side is None:
            return convert(terms[0].value, terms[0].unit, unit)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}") from None
    raise ConfigurationError(f"{name}={show(given)}: leave the sign out, {name} says it")


def tightest(bounds: Sequence[Bound], side: Side) -> float | None:
    values = [bound.value for bound in bounds if bound.side == side]
    return (min(values) if side == "most" else max(values)) if values else None
