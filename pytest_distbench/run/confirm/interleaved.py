"""Launches that are interleaved with those of another side, as long as there is time."""

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

START_S = 4.0  # what the launchers of a side take to start, once

ENDED = "--distbench-confirm=auto:SECONDS"

_SLOWER = 10.0  # an interleaved launch may take so many times what this tree's took alone, and :data:`_GRACE_S` more
_GRACE_S = 30.0


_ASIDE = 4  # no more than one part in so many of the time is set aside for them


_MOST_PLACES_S = 12.0  # three launches, one of them for the noise, may take so long after a verdict; else there are two


def for_places(launches: Sequence[LaunchRecord]) -> tuple[int, float]:
    """How many launches find the places of a regression, and how long they take."""
    each_s = statistics.median([launch.wall_s for launch in launches] or [0.0])
    number = 3 if 3 * each_s <= _MOST_PLACES_S else 2
    return number, number * each_s


class Allowance:
    """Seconds in which launches can be made. Waiting for others that measure on this host is none of them.

    ``aside_s`` of them are set aside for what follows a verdict.
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
        """Leave so many, at most a part of all, for what follows."""
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
    """What interleaved launches are judged by, as long as there is time."""

    def __init__(self, request: CaseRequest, looks: Sequence[int], budget: Allowance) -> None:
        super().__init__(request)
        self._looks = looks
        self._budget = budget
        self._began_at = self._added_at = time.monotonic()

    @property
    def took_s(self) -> float:
        return time.monotonic() - self._began_at

    def looks(self) -> Sequence[int]:
        return self._looks

    def may_begin(self, source: Source, look: int) -> bool:
        """Whether what is missing for a look takes no longer than there is time, by what the others took."""
        now = time.monotonic()
        last_s, self._added_at = now - self._added_at, now
        if not len(source):
            return True
        last_s -= START_S * (len(source) == 1)
        each_s = max(last_s, (now - self._began_at - START_S) / len(source), 0.0)
        return each_s * (look - len(source)) <= self._budget.left_s

    def give_up(self, source: Source, error: LauncherError) -> None:
        source.alone, source.most = str(error), len(source)

    def settle(self, source: Source) -> list[Finding]:
        """The findings, as far as there is time; none where that is not enough for the first look."""
        ended = f"its time was used up: {ENDED}"
        return [
            replace(f, code="not-confirmed", reason=f"{f.reason}; {ended}", is_open=False) if f.is_open else f
            for f in self.decide(source)
        ]


def in_time(request: LaunchRequest, launched: Sequence[float], *, left_s: float = math.inf) -> LaunchRequest:
    """A request whose launches end in a bounded time, whatever another revision does in them.

    That is what is left of a budget, but no less than this tree's launches and a start have taken.
    """
    longest = max(launched, default=0.0)
    most_s = min(_SLOWER * longest + _GRACE_S, max(left_s, START_S + 2 * longest))
    return replace(request, timeout_s=min(request.timeout_s, most_s))
