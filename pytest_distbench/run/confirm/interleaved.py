"""Comparisons by interleaved launches within a time budget."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

from pytest_distbench.errors import LauncherError
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.plan import LaunchRequest
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import Finding
from pytest_distbench.run.request import CaseRequest
from pytest_distbench.run.sources import CaseComparison, Source

START_S = 4.0  # for the launchers of a side to start, once

ENDED = "--distbench-confirm=auto:SECONDS"

_SLOWER = 10.0  # the longest interleaved launch, as a multiple of the candidate's alone, and :data:`_GRACE_S` more
_GRACE_S = 30.0


_ASIDE = 4  # at most this part of the budget, 1 / 4, is set aside


_MOST_PLACES_S = 12.0  # three launches, one of them for the noise, if they take no longer; else two


def for_places(launches: Sequence[LaunchRecord]) -> tuple[int, float]:
    """Number of launches that find the places of a regression, and their seconds."""
    each_s = statistics.median([launch.wall_s for launch in launches] or [0.0])
    number = 3 if 3 * each_s <= _MOST_PLACES_S else 2
    return number, number * each_s


class Allowance:
    """A budget of seconds for launches, which does not count waiting for other runs on this host.

    ``aside_s`` of them are set aside for launches after a verdict.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.aside_s = 0.0
        self._until = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        return self._until - time.monotonic() - self.aside_s

    @contextlib.contextmanager
    def setting_aside(self, seconds: float) -> Iterator[None]:
        """Set seconds aside, at most 1 / :data:`_ASIDE` of all, for launches after a verdict."""
        self.aside_s = min(seconds, self.seconds / _ASIDE)
        try:
            yield
        finally:
            self.aside_s = 0.0

    @contextlib.contextmanager
    def waiting(self, hold: AbstractContextManager[object]) -> Iterator[None]:
        asked_at = time.monotonic()
        with hold:
            self._until += time.monotonic() - asked_at
            yield


class Interleaved(CaseComparison):
    """Comparison by interleaved launches within a budget."""

    def __init__(self, request: CaseRequest, looks: Sequence[int], budget: Allowance) -> None:
        super().__init__(request)
        self._looks = looks
        self._budget = budget
        self._began_at = self._added_at = time.monotonic()
        self.reserved_s = 0.0  # of the budget, for launches of other cases

    @property
    def took_s(self) -> float:
        return time.monotonic() - self._began_at

    def looks(self) -> Sequence[int]:
        return self._looks

    def may_begin(self, source: Source, look: int) -> bool:
        """Whether the budget is enough for the launches that a look still needs, by the duration of earlier ones."""
        now = time.monotonic()
        last_s, self._added_at = now - self._added_at, now
        if not len(source):
            return True
        last_s -= START_S * (len(source) - 1 in source.starts)
        begun = sum(start < len(source) for start in source.starts)
        each_s = max(last_s, (now - self._began_at - START_S * begun) / len(source), 0.0)
        starts_s = START_S * (len(source.starts) - begun)
        return starts_s + each_s * (look - len(source)) + self.reserved_s <= self._budget.left_s

    def give_up(self, source: Source, error: LauncherError) -> None:
        source.alone, source.most = str(error), len(source)

    def decide_in_time(self, source: Source) -> list[Finding]:
        """Decide within the budget; ``[]`` if it is not enough for the first look."""
        ended = f"its time was used up: {ENDED}"
        return [
            replace(f, code="not-confirmed", reason=f"{f.reason}; {ended}", is_open=False) if f.is_open else f
            for f in self.decide(source)
        ]


def in_time(request: LaunchRequest, launched: Sequence[float], *, left_s: float = math.inf) -> LaunchRequest:
    """Limit the launches of a request in time, because another revision may be slower or hang.

    The limit is what is left of a budget, but at least a start and twice the longest launch of the candidate.
    """
    longest = max(launched, default=0.0)
    most_s = min(_SLOWER * longest + _GRACE_S, max(left_s, START_S + 2 * longest))
    return replace(request, timeout_s=min(request.timeout_s, most_s))
