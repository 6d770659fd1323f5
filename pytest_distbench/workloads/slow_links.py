"""Which link, or which rank, is slow: from the links that are, or from their times alone.

And what of the times of a sweep is a call's, and what a byte's. Pure, no I/O.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.metric import Scalar
from pytest_distbench.records.run import Finding

STANDS_OUT = 1.8
"""A link that takes so many times as long as a typical one stands out: one at half its rate does."""


class Link(NamedTuple):
    """Two ranks and the way from one to the other."""

    source: int
    target: int

    @property
    def at(self) -> dict[str, Scalar]:
        return {"from": self.source, "to": self.target}


def link_at(at: Mapping[str, Scalar]) -> Link | None:
    """The link of a metric, or None if it is of none."""
    return Link(int(at["from"]), int(at["to"])) if at.keys() == {"from", "to"} else None


def by_link(verdicts: Iterable[Finding]) -> dict[str, dict[Link, Finding]]:
    """Metric -> link -> its verdict; what is of no link is passed over."""
    found: dict[str, dict[Link, Finding]] = {}
    for verdict in verdicts:
        if (link := link_at(verdict.at)) is not None:
            found.setdefault(verdict.name, {})[link] = verdict
    return found


def times_of(verdicts: Mapping[Link, Finding]) -> dict[Link, float]:
    """What each link takes, in a unit of its metric's own: of a rate its inverse."""
    known = {link: (v.current, METRIC_KINDS[v.better].sign) for link, v in verdicts.items() if v.current}
    return {link: 1 / value if sign < 0 else value for link, (value, sign) in known.items()}


@dataclass(frozen=True, slots=True)
class Slow:
    """What is slow.

    Attributes:
        ranks: every link of theirs is slow, and some link of others is not.
        links: slow ones of other ranks.
        senders: of other ranks those that every link from is slow, where links were measured both ways.
        receivers: the same of links to them.
    """

    ranks: tuple[int, ...]
    links: tuple[Link, ...]
    senders: tuple[int, ...] = ()
    receivers: tuple[int, ...] = ()


def find_slow(slow: Collection[Link], measured: Collection[Link]) -> Slow:
    """Name the ranks whose links are all slow, and the slow links that are left.

    Where all links are slow it is no rank's fault; and of two ranks neither can be told from their link.
    """
    ranks = sorted({rank for link in measured for rank in link})
    if len(slow) == len(measured):
        return Slow((), tuple(sorted(slow)))
    named = [rank for rank in ranks if all(link in slow for link in measured if rank in link)]
    left = [link for link in slow if not set(named) & set(link)]
    senders: tuple[int, ...] = ()
    receivers: tuple[int, ...] = ()
    others = len(ranks) - 1 - len(named)
    if others > 1 and all(Link(link.target, link.source) in measured for link in measured):
        senders, receivers = (
            tuple(rank for rank in ranks if sum(link[end] == rank for link in left) == others) for end in (0, 1)
        )
    left = [link for link in left if link.source not in senders and link.target not in receivers]
    return Slow(tuple(named), tuple(sorted(left)), senders, receivers)


def typical_time(times: Mapping[Link, float]) -> float | None:
    """Median of the fastest links, as many as there are without one rank: a slow rank does not move it.

    None where one rank's links are all there are: of two ranks.
    """
    ranks = len({rank for link in times for rank in link})
    others = len(times) * (ranks - 2) // ranks if ranks else 0
    return statistics.median(sorted(times.values())[:others]) if others else None


def imbalance(times: Mapping[Link, float]) -> float:
    """How many times as long as a typical link the slowest takes; of three ranks or more."""
    typical = typical_time(times)
    assert typical is not None
    return max(times.values()) / typical


def outliers(times: Mapping[Link, float], share: float = STANDS_OUT) -> list[Link]:
    """Links that take more than this share of a typical one's time."""
    typical = typical_time(times)
    return [] if typical is None else [link for link, seconds in times.items() if seconds > share * typical]


FEWEST_SIZES = 6
"""Fewer do not tell the two terms apart, let alone how well they fit."""

_STEPS = 60
_CLOSE = 1e-10
_FARTHEST_STEP = 2.0
_DAMPING = 1e-9
_HUBER = 1.345
_NORMAL_MAD = 1.4826
_FINEST_SCALE = 1e-6


def fit_link_terms(times: Mapping[int, float]) -> tuple[float, float]:
    """Seconds of a call that sends nothing, and seconds that a byte adds, fitted to a time per size.

    The model is Hockney's (Parallel Computing 20, 1994).

    Errors are taken as relative ones, so that 4 B count as much as 1 GiB: residuals are of logarithms, and so are the
    terms, which keeps them above zero. Gauss-Newton steps with Huber's weights (Huber, Robust Statistics, 1981, chapter
    7; constant 1.345 times the median absolute deviation), so that one disturbed size, or the step from one algorithm
    to the next, does not turn the line.
    """
    sizes, logs = list(times), [math.log(t) for t in times.values()]
    # Sizes without bytes have no second term; the largest ones have hardly anything else.
    latency = math.log(min(times.values()))
    rate = max(logs) - math.log(max(1, *sizes))
    weights = [1.0] * len(sizes)
    for _ in range(_STEPS):
        residuals, shares = _residuals(sizes, logs, latency, rate)
        weights = _huber(residuals)
        step = _solve(shares, weights, residuals)
        latency, rate = latency + step[0], rate + step[1]
        if max(map(abs, step)) < _CLOSE:
            break
    return math.exp(latency), math.exp(rate)


def _residuals(
    sizes: Sequence[int], logs: Sequence[float], latency: float, rate: float
) -> tuple[list[float], list[float]]:
    """Logarithm of measured over modelled, and the share of the latency in what is modelled, by size."""
    residuals, shares = [], []
    a, b = math.exp(latency), math.exp(rate)
    for size, log in zip(sizes, logs, strict=True):
        modelled = a + b * size
        residuals.append(log - math.log(modelled))
        shares.append(a / modelled)
    return residuals, shares


def _huber(residuals: Sequence[float]) -> list[float]:
    scale = max(_FINEST_SCALE, _NORMAL_MAD * statistics.median(map(abs, residuals)))
    return [min(1.0, _HUBER * scale / abs(r)) if r else 1.0 for r in residuals]


def _solve(shares: Sequence[float], weights: Sequence[float], residuals: Sequence[float]) -> tuple[float, float]:
    """The step of both terms, by J'WJ, whose rows are (share, 1 - share); a little is added to invert it."""
    rows = list(zip(shares, weights, residuals, strict=True))
    xx = sum(w * s * s for s, w, _ in rows) + _DAMPING
    yy = sum(w * (1 - s) ** 2 for s, w, _ in rows) + _DAMPING
    xy = sum(w * s * (1 - s) for s, w, _ in rows)
    x = sum(w * s * r for s, w, r in rows)
    y = sum(w * (1 - s) * r for s, w, r in rows)
    determinant = xx * yy - xy * xy
    latency, rate = (yy * x - xy * y) / determinant, (xx * y - xy * x) / determinant
    return max(-_FARTHEST_STEP, min(_FARTHEST_STEP, latency)), max(-_FARTHEST_STEP, min(_FARTHEST_STEP, rate))
