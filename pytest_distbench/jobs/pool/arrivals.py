"""When requests arrive: a Poisson process whose rate follows a demand, drawn from a seed."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

from pytest_distbench.records.pool import Demand, Serving


def arrivals(serving: Serving) -> Iterator[float]:
    """Seconds by the pool's clock, ascending. It ends only where the last demand is for nothing."""
    chance = random.Random(serving.seed)
    nothing = Demand(at_s=math.inf, per_s=0.0)
    for demand, following in itertools.pairwise([*serving.demand, nothing]):
        at_s = demand.at_s
        while demand.per_s > 0:
            at_s += chance.expovariate(demand.per_s)
            if at_s >= following.at_s:
                break
            yield at_s


class Backlog:
    """How many requests are due and have no answer yet."""

    def __init__(self, serving: Serving) -> None:
        self._coming = arrivals(serving)
        self._next = next(self._coming, math.inf)
        self._due = 0

    def size(self, at_s: float, *, answered: int) -> int:
        """At a moment, which is not before that of the last call."""
        while self._next <= at_s:
            self._due += 1
            self._next = next(self._coming, math.inf)
        return self._due - answered
