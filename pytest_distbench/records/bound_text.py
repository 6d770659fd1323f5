"""Bounds as people write them, in markers, arguments and baseline files. Needs no msgspec: markers are read early."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pytest_distbench.errors import ConfigurationError, show
from pytest_distbench.units import as_float, parse_quantity

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
