"""How far a training may be from its float64 reference: as far as equal mathematics are. Pure.

A control is the same training on one rank, its samples in another order: equal mathematics, other roundings. A quantity
deviates where it is further from the reference than all controls together, times how far controls are apart. That is
the only rule; nobody chooses a tolerance.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

WEIGHTS, LOSS, GRADIENT, STATE = range(4)
"""What is compared of a step, in its order; weights are those that the training starts with."""


class Quantity(NamedTuple):
    """What is compared: of a step, from 1, the loss, or the gradient or state of one parameter."""

    step: int
    part: int
    name: str = ""


def limits_of(controls: Sequence[Mapping[Quantity, float]]) -> dict[Quantity, float]:
    """The largest deviation of each quantity that equal mathematics explain: the same in each step.

    In a step a few numbers may meet the reference by chance, so the largest deviation of all steps counts.
    """
    largest: dict[tuple[int, str], list[float]] = defaultdict(lambda: [0.0] * len(controls))
    for quantity in controls[0]:
        kind = quantity.part, quantity.name
        largest[kind] = list(map(max, largest[kind], (control[quantity] for control in controls)))
    limits = {
        kind: math.fsum(found) * (max(found) / min(found) if min(found) > 0 else 1.0) for kind, found in largest.items()
    }
    return {quantity: limits[quantity.part, quantity.name] for quantity in controls[0]}


def times_beyond(deviation: float, limit: float) -> float:
    """A deviation over its limit; infinite where none is allowed, or it is no number."""
    if math.isnan(deviation):
        return math.inf
    return deviation / limit if limit else (math.inf if deviation else 0.0)


def first_beyond(deviations: Mapping[Quantity, float], limits: Mapping[Quantity, float]) -> Quantity | None:
    """The first quantity that deviates; of one part of a step that which is furthest beyond its limit."""
    beyond = [quantity for quantity, found in deviations.items() if not found <= limits[quantity]]
    if not beyond:
        return None
    step, part = min((quantity.step, quantity.part) for quantity in beyond)
    of_part = (q for q in beyond if (q.step, q.part) == (step, part))
    return max(of_part, key=lambda q: times_beyond(deviations[q], limits[q]))
