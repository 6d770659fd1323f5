"""The second statistic of a clock: all of its iterations, not the fast side alone. Pure, no I/O.

The fast side is quiet because it leaves out what is slow, and so it does not see that most iterations became slow.
Beside it stands the geometric mean of all iterations, the quietest number that each of them moves: of the mean, the
median and trimmed means none scatters less between recorded launches. Other processes move it more than the fast side:

- a screening looks into it from :data:`LEAST_OF_ALL` on, and launches in turns are judged by it at that tolerance,
  where the fast side does not call a clock slower;
- stored numbers alone make it *regressed* where it has more than doubled (:data:`BEYOND_DOUBT`), as no recorded change
  of load did, and by more than its noise allows.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from pytest_distbench.judging.stats import noise_limit, pooled_stdev, worse_pairs
from pytest_distbench.judging.stored_rule import CONFIRMING_PAIRS, OBVIOUS_LAUNCHES, OBVIOUS_LIMITS
from pytest_distbench.records.baseline import BaselineMetric
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.record import replace
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.units import format_change

LEAST_OF_ALL = 0.25
"""The smallest change of all iterations that counts."""

BEYOND_DOUBT = 1.0
"""The same by stored numbers alone."""

CAUTION = 5
"""In turns it has so small a part of the error rate of the fast side: it is asked where that one says no."""

FEWEST_OF_SERIES = 4
"""Of a series: with fewer the fast side is as much of it."""

FEWEST_STORED = 5
"""Launches: of fewer nobody knows how much all of their iterations differ."""


def whole(measurement: Measurement) -> float | None:
    """The geometric mean of a launch's series; None where there is none, or no series of times or rates."""
    values = measurement.distribution
    if METRIC_KINDS[measurement.better].rule != "noisy" or len(values) < FEWEST_OF_SERIES or min(values) <= 0:
        return None
    return statistics.geometric_mean(values)


class Wholes(NamedTuple):
    """Logarithms of all iterations, of stored launches and of new ones."""

    old: list[float]
    new: list[float]
    sign: float

    @classmethod
    def of(cls, current: Sequence[Measurement], stored: BaselineMetric) -> Wholes | None:
        """Of one metric; None where one side does not know it."""
        now = [w for w in map(whole, current) if w is not None]
        if len(stored.whole) < FEWEST_STORED or not now or len(now) < len(current):
            return None
        return cls([math.log(w) for w in stored.whole], [math.log(w) for w in now], METRIC_KINDS[stored.better].sign)

    @property
    def worse_by(self) -> float:
        """The difference of the means, towards worse positive."""
        return self.sign * (statistics.fmean(self.new) - statistics.fmean(self.old))

    def limit(self, *, tolerance: float, alpha: float, most: int, drift: float) -> float:
        """What stored numbers alone do not call slower."""
        noise = noise_limit(
            pooled_stdev(self.old, self.new), len(self.old), max(most, len(self.new)), alpha, drift=drift
        )
        return max(math.log1p(max(tolerance, BEYOND_DOUBT)), noise)

    def is_beyond(self, limit: float, *, most: int) -> bool | None:
        """Whether stored numbers alone say that it is slower; None: one more launch would tell."""
        if self.worse_by <= limit:
            return False
        pairs = worse_pairs(self.old, self.new, self.sign)
        if len(self.new) >= most:
            return pairs >= CONFIRMING_PAIRS
        is_obvious = self.worse_by > OBVIOUS_LIMITS * limit and pairs == 1.0
        return True if is_obvious and len(self.new) >= OBVIOUS_LAUNCHES else None

    def shown(self, verdict: Verdict) -> Verdict:
        """The verdict with these numbers beside it."""
        now, then = (math.exp(statistics.median(side)) for side in (self.new, self.old))
        return replace(verdict, current=now, baseline=then, ratio=math.exp(self.sign * self.worse_by))

    @property
    def told(self) -> str:
        """The change in words."""
        return f"{format_change(math.exp(self.sign * self.worse_by))} over all iterations, by their geometric mean"


def by_whole(launch: LaunchRecord) -> LaunchRecord:
    """A launch with nothing but what has iterations, whose values are of all of them."""
    found = [(m, whole(m)) for m in launch.measurements]
    return replace(launch, measurements=[replace(m, value=w, summary=None) for m, w in found if w is not None])
