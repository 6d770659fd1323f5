"""How good a baseline is: the slowdowns that the rules will detect, for the noise of its launches. Pure.

The noise of a timing is the standard deviation of the logarithm of what is judged of each launch, and no less than what
is typical for its siblings. The stored comparison is that of :mod:`~pytest_distbench.judging.stored_rule` with the most
launches of a run; interleaved A/B is that of :mod:`~pytest_distbench.judging.confirmation` with the most pairs, each of
one launch of the candidate and two of the baseline commit. A change of the machine's speed between the two occasions
costs the first more than is reckoned here, and the second less.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from pytest_distbench.judging.confirmation import LOOKS, SPENDING
from pytest_distbench.judging.pairs import ONE_AGAINST_TWO, PairCircumstances, smallest_slowdown
from pytest_distbench.judging.screening import is_clock
from pytest_distbench.judging.stats import BASELINE_ERROR_RATE, detectable_slowdown
from pytest_distbench.judging.stored_rule import DRIFT, stored_side, typical_noise
from pytest_distbench.records.case import BaselineMetric
from pytest_distbench.records.metric import metric_name
from pytest_distbench.records.run import Sensitivity
from pytest_distbench.records.wanted import RUN_LAUNCHES

LARGEST_MDE = 10.0
"""As a fraction: larger slowdowns need no number."""

POOR = 0.05
"""With more noise than this there is advice: it hides slowdowns of the usual tolerance."""


def sensitivity_of(metrics: Mapping[str, BaselineMetric], tolerances: Mapping[str, float]) -> Sensitivity | None:
    """Of the timing of a case whose slowdowns are the hardest to detect.

    Args:
        tolerances: by metric, of those that are judged, as fractions.

    Returns:
        None if the case has no timing with two launches.
    """
    typical = typical_noise(metrics)
    found: list[tuple[float, str, float]] = []
    for key, tolerance in tolerances.items():
        metric = metrics.get(key)
        if metric is None or not is_clock(metric, metric.unit):
            continue
        known = [value for value in metric.launches if value is not None]
        if len(known) < 2 or min(known) <= 0:
            continue
        noise = statistics.stdev(stored_side(metric, timed=bool(metric.minimum)).fast)
        noise = max(noise, typical.get(metric_name(key), 0.0))
        mde = detectable_slowdown(
            noise, len(known), RUN_LAUNCHES, BASELINE_ERROR_RATE, drift=DRIFT, tolerance=tolerance
        )
        found.append((mde, key, noise))
    if not found:
        return None
    mde, key, noise = max(found)
    under = PairCircumstances(tolerance=tolerances[key], comparisons=1, looks=LOOKS, spending=SPENDING)
    paired = smallest_slowdown(noise * math.sqrt(ONE_AGAINST_TWO), under)
    return Sensitivity(metric=key, noise=noise, mde=min(mde, LARGEST_MDE), paired_mde=min(paired, LARGEST_MDE))


def sensitivity_lines(found: Sequence[tuple[str, Sensitivity]]) -> list[str]:
    """How good the baselines of some cases are, in a sentence, and what to do about it where one of them is poor."""
    if not found:
        return []
    ordered = sorted(found, key=lambda one: one[1].mde)
    (_, middle), (title, worst) = ordered[(len(ordered) - 1) // 2], ordered[-1]
    name, noise = f"{title} {worst.metric}", f"noise {_percent(worst.noise)}"
    told = f"{name}: {noise}: this baseline alone detects slowdowns {_above(worst)}"
    if len(found) > 1:
        told = (
            f"noise {_percent(middle.noise)} (median of {len(found)} cases): baselines alone detect slowdowns "
            f"{_above(middle)}; worst, {name}: {noise}, {_above(worst)}"
        )
    advice = (
        "to detect smaller ones: a quieter machine (distbench doctor), or more iterations in the loop; record again"
    )
    return [told, advice] if worst.noise > POOR else [told]


def _above(one: Sensitivity) -> str:
    return f"above {_percent(one.mde)}, with A/B about {_percent(one.paired_mde)}"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 1 else f"{100 * share:.0f} %"
