"""Movement: all cases of a run moved together, which accuses the machine or the baselines, not one change. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.run import CaseResult
from pytest_distbench.units import is_size

FEWEST_CASES = 4
"""Fewer that move the same way may do so by chance, or by one change in what they share."""

LEAST = math.log(1.05)
"""The median case has moved by more than this, as a logarithm."""

EVEN = 0.5
"""Each case has moved by this share of the median one's movement at least."""


@dataclass(frozen=True, slots=True)
class Movement:
    """How all cases moved.

    Attributes:
        cases: how many.
        is_slower: or faster.
        least: factor of the case that moved least, above 1.
        most: of the one that moved most.
    """

    cases: int
    is_slower: bool
    least: float
    most: float


def common_movement(results: Sequence[CaseResult]) -> Movement | None:
    """The movement of all cases with clocks against stored baselines, if they all moved the same way; else None."""
    found = [moved for result in results if (moved := _worse_by(result)) is not None]
    if len(found) < FEWEST_CASES:
        return None
    middle = statistics.median(found)
    if abs(middle) < LEAST or any(moved / middle < EVEN for moved in found):
        return None
    factors = [math.exp(abs(moved)) for moved in found]
    return Movement(cases=len(found), is_slower=middle > 0, least=min(factors), most=max(factors))


def _worse_by(result: CaseResult) -> float | None:
    """Median over the clocks and rates of a case, as a logarithm, towards worse positive; None where it has none."""
    if result.reference.kind != "stored":
        return None
    moved = [
        METRIC_KINDS[v.better].sign * math.log(v.ratio)
        for v in result.verdicts
        if v.is_noisy and v.ratio and v.ratio > 0 and v.unit and not is_size(v.unit)
    ]
    return statistics.median(moved) if moved else None
