"""Enough: how many launches make a baseline, decided while they are made. Pure, no I/O.

An exact number needs two launches: do they agree? A clock needs :data:`FEWEST_LAUNCHES`, for the noise between launches
to be known at all, and then as many as it takes until the tolerance decides a comparison with it, and not the noise:
until ``noise_limit`` of later runs (``stored_rule``) is below the tolerance. More launches would not move the limit.

The noise is estimated from the same launches that are stored, so whoever stops at the first moment at which it looks
small keeps the baselines that look quieter than their machine is. That is why not the estimate itself has to be small
enough, but its upper confidence bound, over all metrics of the case; and a sibling's noise counts where it is larger.
What that does to verdicts is measured by ``benchmarks/verdict_rules.py``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from pytest_distbench.judging.order_rule import have_ratios
from pytest_distbench.judging.stats import BASELINE_ERROR_RATE, chi_square_quantile, noise_limit
from pytest_distbench.judging.stored_rule import DRIFT, Side, are_timed, typical_of_siblings
from pytest_distbench.judging.terms import Terms
from pytest_distbench.judging.update_policy import FEWEST_LAUNCHES
from pytest_distbench.records.baseline import BaselineEntry
from pytest_distbench.records.choices import RUN_LAUNCHES
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement

FEWEST_EXACT = 2
"""Launches of what does not scatter: they show whether it repeats."""

NOISE_CONFIDENCE = 0.8
"""With which the noise is below what is believed of it."""


def fewest_launches(terms: Terms, launches: Sequence[LaunchRecord]) -> int:
    """The launches without which these metrics are no baseline, whatever their noise: fewer where nothing scatters."""
    scatters = any(m.is_noisy for found in _judged(terms, launches).values() for m in found)
    return FEWEST_LAUNCHES if scatters else FEWEST_EXACT


def are_enough(terms: Terms, launches: Sequence[LaunchRecord], entry: BaselineEntry | None = None) -> bool:
    """Whether these launches make a baseline that more of them would not make better."""
    if len(launches) < fewest_launches(terms, launches):
        return False
    judged = _judged(terms, launches)
    noise: dict[str, float] = {}
    for key, found in judged.items():
        kind = METRIC_KINDS[found[0].better]
        if kind.rule in ("exact", "memory"):
            continue
        if not kind.is_of_training and _have_ratios(found):
            noise[key] = statistics.stdev(Side.of_measurements(found, timed=are_timed(found)).fast)
        elif not _repeats(found):
            return False  # chance has a part in it, and nothing but launches can tell how large that is
    typical = typical_of_siblings(noise)
    return all(
        explained_by_noise(max(sigma, typical.get(judged[key][0].name, 0.0)), len(judged[key]))
        <= math.log1p(_tolerance(terms, judged[key][0], entry))
        for key, sigma in noise.items()
    )


def explained_by_noise(sigma: float, launches: int) -> float:
    """The largest change that the noise of so many stored launches, of logarithms, explains in a later run."""
    df = launches - 1
    largest = sigma * math.sqrt(df / chi_square_quantile(1 - NOISE_CONFIDENCE, df))
    return noise_limit(largest, launches, RUN_LAUNCHES, BASELINE_ERROR_RATE, drift=DRIFT)


def _judged(terms: Terms, launches: Sequence[LaunchRecord]) -> dict[str, list[Measurement]]:
    found: dict[str, list[Measurement]] = {}
    for launch in launches:
        for measurement in launch.measurements:
            if measurement.is_judged and terms.wants(measurement.name):
                found.setdefault(measurement.key, []).append(measurement)
    return found


def _have_ratios(found: Sequence[Measurement]) -> bool:
    """Whether later runs are compared with it by the ratio of its values."""
    values = [m.value for m in found if m.value is not None]
    return len(values) == len(found) > 1 and have_ratios(*values)


def _repeats(found: Sequence[Measurement]) -> bool:
    """Whether launches agree in every digit."""
    return all(m.value == found[0].value and m.series == found[0].series for m in found)


def _tolerance(terms: Terms, metric: Measurement, entry: BaselineEntry | None) -> float:
    if entry is None:
        return terms.tolerance_of(metric, [])
    stored = entry.metrics.get(metric.key)
    return terms.tolerance_of(metric, [None if stored is None else stored.tolerance, entry.tolerance])
