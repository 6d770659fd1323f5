"""How much of a change that scatters, a slowdown or more memory, is in some hunks. Pure, no I/O.

Pairs of launches, the candidate and the baseline commit with these hunks, say how much of the candidate's value is not
in them. Values of hunks add up in seconds and bytes, so that share is compared with the one without any hunk, of the
pairs that found the regression. The variance within pairs is the machine's, and is pooled over all sets of hunks:
a set that has nothing of the change, or all of it, is decided after two or three pairs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from pytest_distbench.judging.stats import student_t_quantile

ENOUGH = 0.7
"""Hunks are enough if they have this share of a change: of two that add up equally one is not, of three two are not."""

_ERROR_RATE = 0.005  # of a decision after one more pair


class Shares:
    """Decider about sets of hunks.

    Args:
        sign: 1 if a larger value is worse, -1 if a smaller one is.
        pairs: values of the candidate and of the baseline commit without any hunk, above 0.
        fewest: pairs before a decision.
    """

    def __init__(self, sign: int, pairs: Sequence[tuple[float, float]], *, fewest: int) -> None:
        self._sign, self._fewest = sign, fewest
        self._whole = [self.missing(*pair) for pair in pairs]
        self._seen = [self._whole]

    @property
    def change(self) -> float:
        """The part of the candidate's cost that is missing without any hunk."""
        return statistics.fmean(self._whole)

    @property
    def clarity(self) -> float:
        """How many times what pairs scatter by the change is."""
        scatter = statistics.stdev(self._whole)
        return self.change / scatter if scatter else math.inf

    def missing(self, candidate: float, other: float) -> float:
        """Return the part of the candidate's cost that the other side lacks; a rate costs its inverse."""
        return 1 - (other / candidate) ** self._sign

    def begin(self) -> list[float]:
        """Return a list for the missing parts of the pairs of another set of hunks."""
        self._seen.append([])
        return self._seen[-1]

    def share(self, seen: Sequence[float]) -> float:
        """Return the share of the change that hunks have, by the missing parts of their pairs."""
        return 1 - statistics.fmean(seen) / self.change

    def are_enough(self, seen: Sequence[float], enough: float = ENOUGH) -> bool | None:
        """Whether hunks have so much of the change; None as long as the noise allows both."""
        if len(seen) < self._fewest:
            return None
        by = (1 - enough) * self.change - statistics.fmean(seen)
        known = [part for part in self._seen if len(part) > 1]
        df = sum(len(part) - 1 for part in known)
        sigma = math.sqrt(sum(statistics.variance(part) * (len(part) - 1) for part in known) / df)
        error = sigma * math.sqrt(1 / len(seen) + (1 - enough) ** 2 / len(self._whole))
        return by > 0 if abs(by) > student_t_quantile(1 - _ERROR_RATE, df) * error else None
