"""The rule for a change of a number that a model gives."""

from __future__ import annotations

import math

from pytest_distbench.judging.comparison import Comparison
from pytest_distbench.records.run import Finding
from pytest_distbench.units import format_change


def by_all_terms(c: Comparison) -> Finding:
    """Judge a change of a forecast; it counts only if it has one direction with all terms off by up to ``missed``."""
    then, now = (next(sample.values for sample in side if sample.values) for side in (c.baseline, c.candidate))
    ratios = [n / t if t else 1.0 if n == t else math.inf for t, n in zip(then, now, strict=True)]
    least, most, limit = min(ratios), max(ratios), c.under.tolerance
    ends = dict.fromkeys(map(format_change, (least, most)))  # one where they are equal
    range_ = f"{' to '.join(ends)} if terms are off"
    if ratios[-1] > 1 + limit:
        return c.finding("beyond-threshold" if least > 1 else "model-unsure", range_, threshold=limit)
    if ratios[-1] < 1 - limit and most < 1:
        return c.finding("better", range_, threshold=limit)
    return c.finding("within-threshold", threshold=limit)


BY_ALL_TERMS = (by_all_terms,)
