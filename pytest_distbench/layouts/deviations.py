"""Limits on the distance of a training from its float64 reference: what roundings alone explain. Pure.

A control is the same training on one rank, its samples in another order: equal mathematics, other roundings. A quantity
deviates if it is further from the float64 reference than all controls together, times the ratio of the furthest control
to the nearest. That is the only rule; nobody chooses a tolerance.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

WEIGHTS, LOSS, GRADIENT, STATE = range(4)
"""Parts of a step in their order: weights before it, loss, gradients, and the state after its update."""


class Quantity(NamedTuple):
    """What is compared in a step (from 1): its loss, or the weight, gradient or optimizer state of a parameter."""

    step: int
    part: int
    name: str = ""


def limits_of(controls: Sequence[Mapping[Quantity, float]]) -> dict[Quantity, float]:
    """Return the largest deviation of each quantity that roundings alone explain, equal for all steps.

    In one step a few numbers may match the float64 reference by chance, so a control's largest of all steps counts.
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
    """Return a deviation over its limit: infinite if it is NaN, or above a limit of 0."""
    if math.isnan(deviation):
        return math.inf
    return deviation / limit if limit else (math.inf if deviation else 0.0)


def first_beyond(deviations: Mapping[Quantity, float], limits: Mapping[Quantity, float]) -> Quantity | None:
    """Return the first quantity above its limit, or None; of one part of a step, the one furthest above."""
    beyond = [quantity for quantity, found in deviations.items() if not found <= limits[quantity]]
    if not beyond:
        return None
    step, part = min((quantity.step, quantity.part) for quantity in beyond)
    of_part = (q for q in beyond if (q.step, q.part) == (step, part))
    return max(of_part, key=lambda q: times_beyond(deviations[q], limits[q]))
