"""Change points over a history of runs: where the level of a metric moved for good.

A level holds for at least :data:`LEAST_RUNS` runs: one that
stands out alone is noise. The segments are those whose squared deviations from their means are smallest, at a price for
each further one (PELT: Killick, Fearnhead and Eckley, 2012, in the library *ruptures*), of the logarithms, with single
outliers taken out by a running median of three. Each change is then tested by itself: the runs before it, back to the
change before, against those after it, by the rank-sum test of Mann and Whitney. What is not certain enough is taken out
again, the least certain first. Runs of one machine are not independent of each other: a machine that is slower for a
week is a change, too.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_distbench.errors import ConfigurationError

LEAST_RUNS = 5
"""Fewer on one side of a change tell no level."""

PRICE = 4.0
"""Of a further segment, times the logarithm of the number of runs, in variances of the noise."""

ERROR_RATE = 1e-3
"""That a series without a change is said to have one, for all its runs together."""

LEAST_CHANGE = 0.01
"""Smaller changes are not worth a line, as a fraction."""

_MOST_EXACT = 60
"""Of more numbers the exact distribution of the rank sum takes long, and the normal one is as good."""

_TO_STDEV = 1.4826 / math.sqrt(2)
"""Times the median absolute difference of neighbours gives the standard deviation of normal noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """A change for good.

    Attributes:
        index: of the first run on the new level.
    """

    index: int
    before: float
    after: float

    @property
    def ratio(self) -> float:
        return self.after / self.before


def change_points(values: Sequence[float]) -> list[ChangePoint]:
    """Where the level of a metric changed, oldest first; of values that are not all above 0 nothing is said.

    Logarithms are segmented, and the rank-sum test of Mann and Whitney checks each change, at one error rate for all.
    """
    if len(values) < 2 * LEAST_RUNS or not all(value > 0 for value in values):
        return []
    logs = [math.log(value) for value in values]
    ends = _certain(logs, _segmented(logs))
    levels = [statistics.median(values[begin:end]) for begin, end in zip([0, *ends], [*ends, len(values)], strict=True)]
    found = [
        ChangePoint(index=index, before=before, after=after)
        for index, before, after in zip(ends, levels, levels[1:], strict=False)
    ]
    return [change for change in found if abs(math.log(change.ratio)) >= math.log1p(LEAST_CHANGE)]


def _segmented(logs: Sequence[float]) -> list[int]:
    try:
        import ruptures
    except ImportError:
        raise ConfigurationError(
            "change points need ruptures, which is not installed: pip install 'pytest-distbench[history]'"
        ) from None
    import numpy

    middles = [statistics.median(logs[i - 1 : i + 2]) for i in range(1, len(logs) - 1)]
    smooth = numpy.array([logs[0], *middles, logs[-1]])
    steps = [later - earlier for earlier, later in itertools.pairwise(logs)]
    noise = _TO_STDEV * statistics.median(abs(step) for step in steps) or LEAST_CHANGE  # exact numbers have none
    search = ruptures.KernelCPD(kernel="linear", min_size=LEAST_RUNS).fit((smooth / noise).reshape(-1, 1))
    return [int(end) for end in search.predict(pen=PRICE * math.log(len(logs)))[:-1]]


def fewest_runs() -> int:
    """Of fewer runs no change can be told, even of levels that do not overlap: chance alone parts so few so well."""
    return next(n for n in itertools.count(2 * LEAST_RUNS) if 2 / math.comb(n, n // 2) <= ERROR_RATE / n)


def _certain(logs: Sequence[float], begins: list[int]) -> list[int]:
    from scipy.stats import mannwhitneyu

    def chance(before: Sequence[float], after: Sequence[float]) -> float:
        """That numbers of one level are parted as these are; exact where they are few and all differ."""
        both = [*before, *after]
        is_exact = len(both) <= _MOST_EXACT and len(set(both)) == len(both)
        return float(mannwhitneyu(before, after, method="exact" if is_exact else "asymptotic").pvalue)

    begins = list(begins)
    while begins:
        edges = [0, *begins, len(logs)]
        chances = [
            chance(logs[begin:middle], logs[middle:end])
            for begin, middle, end in zip(edges, edges[1:], edges[2:], strict=False)
        ]
        if max(chances) <= ERROR_RATE / len(logs):
            break
        del begins[chances.index(max(chances))]
    return begins
