"""Which of a row of commits moved a metric: what visits have shown -> a chance for each, and the next to visit. Pure.

Commits are numbered from 1; one of them moved the metric, and from there on it stays moved. Commit 0 is GOOD, and the
last is known to be moved. A visit is evidence, no proof: its logarithmic odds say how much rather the metric had moved
there than not. So one rule serves exact metrics, noisy clocks, commits that cannot be measured, and visits that
contradict each other:

1. Before the first visit all commits are equally likely; each visit multiplies them by its odds (:func:`chances`).
2. The next visit is where the answer is most open: half of the chance lies on either side (:func:`next_place`).
3. Commits that no visit can tell apart, because those between them cannot be measured, stay together. Those that hold
   95 % of the chance are the suspects; the search ends when that is one commit, or one group (:func:`suspects`).

A clock is judged between two hypotheses, *as GOOD* and *as BAD*, with the change that the ends have shown
(:func:`clock_odds`). That needs fewer pairs than a limit does. :class:`Standing` is all of this for a search.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pytest_distbench.judging.pair_rule import FEWEST_PAIRS, LAST_LOOK
from pytest_distbench.records.bisection import Bisection, Commit, Visit

SURE = 0.95
"""So much of the chance on one commit, or on one group that cannot be told apart, ends the search."""

EXACT_ODDS = math.log(1e6)
"""Of a visit that shows an exact metric: it does not err, unless the code is another one in every run."""
EXACTLY_SURE = 0.999
"""In the place of :data:`SURE`, where only commits that were not visited are open."""

_MISLED = 0.01
"""Of the visits that show a clock so many mislead, whatever their pairs say of their noise."""

_DRIFT = 0.015
"""Standard deviation of what one run differs from another by, as a logarithm, that its pairs do not show."""

_STANDARD_ERRORS = 4.5
"""So many lie between GOOD and BAD with the pairs of a visit: few visits are undecided then."""

_NO_QUESTION = 1e-3
"""Bits. What a visit would tell that is not worth one."""


class Seen(NamedTuple):
    """What a visit of a commit showed, as the logarithm of the odds that the metric had moved there."""

    place: int
    log_odds: float

    @property
    def is_clear(self) -> bool:
        """Whether it says one or the other with 95 %."""
        return abs(self.log_odds) > math.log(SURE / (1 - SURE))


class Group(NamedTuple):
    """Commits from the first to the last that no visit can tell apart, and the chance that it was one of them."""

    first: int
    last: int
    chance: float

    @property
    def places(self) -> range:
        """Its commits."""
        return range(self.first, self.last + 1)


@dataclass(frozen=True, slots=True)
class Noise:
    """Standard deviation of the logarithm of a pair, from all visits, and its degrees of freedom."""

    sigma: float
    df: int

    @classmethod
    def of(cls, visits: Iterable[Sequence[float]]) -> Noise:
        """That of pairs around the mean of their visit."""
        groups = [changes for changes in visits if len(changes) > 1]
        df = sum(len(changes) - 1 for changes in groups)
        return cls(math.sqrt(sum((len(c) - 1) * statistics.variance(c) for c in groups) / df), df)


def chances(count: int, seen: Sequence[Seen]) -> list[float]:
    """The chance of each of so many commits that it moved the metric, the first first."""
    logs = [sum(s.log_odds for s in seen if s.place >= place) for place in range(1, count + 1)]
    weights = [math.exp(log - max(logs)) for log in logs]
    return [weight / sum(weights) for weight in weights]


def next_place(chance: Sequence[float], seen: Sequence[Seen], skipped: Collection[int]) -> int | None:
    """The commit whose visit tells most; None where no visit tells anything.

    A neighbour of one that could not be measured is likely to be no better, and one that has told nothing clear is
    likely to do so again: others come before.
    """
    unclear = Counter(s.place for s in seen if not s.is_clear)
    best, most = None, _NO_QUESTION
    before = 0.0
    for place in range(1, len(chance)):
        before += chance[place - 1]
        if place in skipped:
            continue
        distance = min((abs(place - other) for other in skipped), default=math.inf)
        worth = _bits(before) * (1 - 1 / (1 + distance)) / (1 + unclear[place])
        if worth > most:
            best, most = place, worth
    return best


def suspects(chance: Sequence[float], skipped: Collection[int], *, sure: float = SURE) -> list[Group]:
    """The fewest groups of commits that hold so much of the chance, the likeliest first."""
    groups: list[Group] = []
    first = 1
    for place in range(1, len(chance) + 1):
        if place not in skipped or place == len(chance):
            groups.append(Group(first, place, sum(chance[first - 1 : place])))
            first = place + 1
    groups.sort(key=lambda group: -group.chance)
    held = 0.0
    for number, group in enumerate(groups, 1):
        held += group.chance
        if held >= sure:
            return groups[:number]
    return groups


def visits_left(chance: Sequence[float]) -> int:
    """About how many more visits it takes, if each halves what is open."""
    return max(1, math.ceil(-sum(c * math.log2(c) for c in chance if c > 0) - 0.1))


def pairs_a_visit(at_bad: Sequence[float], noise: Noise) -> int:
    """How many pairs tell the change at BAD from none, mostly at one visit."""
    needed = (_STANDARD_ERRORS * noise.sigma / statistics.fmean(at_bad)) ** 2
    return min(max(FEWEST_PAIRS, math.ceil(needed)), LAST_LOOK)


def clock_odds(changes: Sequence[float], at_bad: Sequence[float], noise: Noise) -> float:
    """How much rather pairs show the change at BAD than none, as the logarithm of the odds.

    Student's density of their mean around the one and around the other; beyond either end is as at that end. A mean
    that neither explains, half of the change say, speaks for neither. Pairs noisier than others count as what they are.

    Args:
        changes: logarithm of the commit's value over GOOD's, one per pair.
        at_bad: the same at BAD.
        noise: of all pairs.
    """
    sigma = max(noise.sigma, statistics.stdev(changes))
    whole = statistics.fmean(at_bad)
    moved = min(max(statistics.fmean(changes) / whole, 0.0), 1.0) * whole
    variance = sigma**2 / len(changes) + _DRIFT**2
    as_good = _density(moved, variance, noise.df)
    as_bad = _density(whole - moved, variance + noise.sigma**2 / len(at_bad), noise.df)
    return math.log((as_bad + _MISLED) / (as_good + _MISLED))


def _density(distance: float, variance: float, df: int) -> float:
    """Of Student's t, as a fraction of that at its middle."""
    return float((1 + distance**2 / (variance * df)) ** (-(df + 1) / 2))


def _bits(chance: float) -> float:
    """What the answer to a question is worth whose yes has this chance."""
    if not 0 < chance < 1:
        return 0.0
    return -chance * math.log2(chance) - (1 - chance) * math.log2(1 - chance)


@dataclass(frozen=True)
class Standing:
    """Where a search stands among the commits from the first after GOOD to BAD."""

    state: Bisection
    commits: Sequence[Commit]

    @functools.cached_property
    def noise(self) -> Noise:
        """Of the clock that is followed."""
        return Noise.of([self.state.followed.at_bad, *(visit.changes for visit in self.state.visits)])

    def seen(self, visit: Visit) -> Seen:
        """What a visit that measured its commit says."""
        followed = self.state.followed
        if followed.is_exact:
            return Seen(self.place(visit), EXACT_ODDS if visit.has_moved else -EXACT_ODDS)
        return Seen(self.place(visit), clock_odds(visit.changes, followed.at_bad, self.noise))

    def place(self, visit: Visit) -> int:
        """The number of its commit."""
        return self._places[visit.commit]

    @functools.cached_property
    def chances(self) -> list[float]:
        """Of each commit."""
        return chances(len(self.commits), self._seen)

    @functools.cached_property
    def suspects(self) -> list[Group]:
        """The fewest groups that hold enough of the chance, the likeliest first."""
        sure = EXACTLY_SURE if self.state.followed.is_exact else SURE
        return suspects(self.chances, self.skipped, sure=sure)

    @property
    def found(self) -> Commit | None:
        """The commit, where it is one."""
        group = self.suspects[0]
        is_one = len(self.suspects) == len(group.places) == 1
        return self.commits[group.first - 1] if is_one else None

    @functools.cached_property
    def next(self) -> Commit | None:
        """The commit to visit; None where the search is over."""
        place = next_place(self.chances, self._seen, self.skipped) if len(self.suspects) > 1 else None
        return None if place is None else self.commits[place - 1]

    @functools.cached_property
    def skipped(self) -> set[int]:
        """Numbers of the commits that could not be measured."""
        return {self.place(visit) for visit in self.state.visits if visit.skipped}

    @functools.cached_property
    def _seen(self) -> list[Seen]:
        return [self.seen(visit) for visit in self.state.visits if not visit.skipped]

    @functools.cached_property
    def _places(self) -> dict[str, int]:
        return {commit.hash: number for number, commit in enumerate(self.commits, 1)}
