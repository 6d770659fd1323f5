"""How grave a verdict is beside others of its kind, so that the worst is named first."""

from __future__ import annotations

import math
from collections.abc import Iterable

from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.verdict import Verdict


def severity(verdict: Verdict) -> float:
    """How far the metric moved, as a logarithm, whichever way is worse; infinite where a ratio does not say it."""
    if verdict.ratio is None or verdict.ratio <= 0:
        return math.inf
    return abs(math.log(verdict.ratio))


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The one to name first: what is beyond a bound, or a training's curve, the earliest to go, else what moved most.

    Raises:
        ValueError: there is none.
    """
    return max(verdicts, key=lambda v: (v.kind == "beyond", METRIC_KINDS[v.better].rule == "curve", severity(v)))
