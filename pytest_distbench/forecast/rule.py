"""How a change of a number that a model gives is judged."""

from __future__ import annotations

import math

from pytest_distbench.judging.comparison import Comparison
from pytest_distbench.records.run import Finding
from pytest_distbench.units import format_change


def by_all_terms(c: Comparison) -> Finding:
    """A change counts if it is one whether the model's terms are as stated or off by as much as they may be."""
    then, now = (next(sample.values for sample in side if sample.values) for side in (c.baseline, c.candidate))
    ratios = [n / t if t else 1.0 if n == t else math.inf for t, n in zip(then, now, strict=True)]
    least, most, limit = min(ratios), max(ratios), c.under.tolerance
    ends = dict.fromkeys(map(format_change, (least, most)))  # one where they are equal
    told = f"{' to '.join(ends)} if terms are off"
    if ratios[-1] > 1 + limit:
        return c.finding("beyond-threshold" if least > 1 else "model-unsure", told, threshold=limit)
    if ratios[-1] < 1 - limit and most < 1:
        return c.finding("better", told, threshold=limit)
    return c.finding("within-threshold", threshold=limit)


BY_ALL_TERMS = (by_all_terms,)
