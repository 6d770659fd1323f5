"""How a metric went over many runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pytest_distbench.records.kinds import Better

USUAL_LAST = 500
"""So many runs are looked at where nobody says another number: the last ones."""


class Point(NamedTuple):
    """The metric at one time.

    Attributes:
        at: UTC, ISO 8601: the run's start.
        commit: that was measured; empty where nobody knows.
        value: median over launches, in the metric's unit.
    """

    at: str
    commit: str
    value: float


@dataclass(slots=True, kw_only=True)
class Trend:
    """A metric of a case on one class of hardware.

    Attributes:
        platform: hardware class.
        test: node id of the test's function.
        case: name of its entry in a store.
        title: for people: ``test_all_reduce[float32-ws2]``.
        nodeid: that pytest takes.
        metric: name and point.
        unit: of its values.
        better: its kind.
        points: oldest first.
    """

    platform: str
    test: str
    case: str
    title: str
    nodeid: str
    metric: str
    unit: str
    better: Better
    points: list[Point] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The metrics of many runs.

    Attributes:
        records: how many were looked at, the last ones.
        first: time of the first of these, UTC, ISO 8601; empty: there is none.
        last: of the last.
        trends: in the order of platforms, tests, cases and metrics.
        problems: what is wrong with files that are none.
    """

    records: int
    first: str = ""
    last: str = ""
    trends: list[Trend] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
