"""What was measured under one name: as a rank saw it, and as a launch has it."""

from __future__ import annotations

from pytest_distbench.records.bound import Bound
from pytest_distbench.records.kinds import OfKind, Reduce
from pytest_distbench.records.record import Number, Record

Scalar = bool | int | float | str


UNCERTAINTY = "uncertainty"
"""Companion of a number that was estimated inside its launch: its standard error there, as a fraction of it."""

PHASE = "phase/"
"""What the names of phases begin with among the metrics."""


class Observation(OfKind, frozen=True, kw_only=True):
    """What one rank recorded under one name: a value or a series, before reduction over ranks."""

    name: str
    unit: str
    reduce: Reduce
    values: list[Number]
    is_series: bool
    at: dict[str, Scalar] = {}
    identity: dict[str, Scalar] = {}
    """What defines the number besides its name and point: it is not compared with one of another."""
    facts: dict[str, Scalar] = {}
    """What describes it."""
    companions: dict[str, list[float]] = {}
    """Witnesses of a clock, one value per iteration: ``cpu_s``, ``waits``; on a GPU what the host did, too."""
    beside: list[str] = []
    """Of a curve that was read: what the script wrote beside each value, its own number of the step perhaps."""
    bounds: list[Bound] = []
    """That were given with the number."""


class Summary(Record, frozen=True, kw_only=True):
    """Spread of a series inside one launch, after reduction over ranks."""

    n: int
    minimum: float
    p25: float
    median: float
    p95: float
    p99: float
    mean: float
    stdev: float
    slowest_rank: int | None = None
    """The rank that was slowest most often; None where ranks were not compared."""
    slowest_share: float = 0.0
    """Share of the iterations in which that rank was the slowest, 0 to 1."""


class Measurement(OfKind, frozen=True, kw_only=True):
    """One metric of one launch, reduced over ranks: the sample a verdict is made of."""

    name: str
    unit: str
    value: Number | None
    """The launch's value; None says it has none (a goal never reached)."""
    at: dict[str, Scalar] = {}
    identity: dict[str, Scalar] = {}
    """What defines the number besides its name and point: it is not compared with one of another."""
    facts: dict[str, Scalar] = {}
    """What describes it."""
    series: list[Number] = []
    """Kept for exact, info and curve series only."""
    beside: list[str] = []
    """What a script wrote beside each value of the series, where it was read."""
    summary: Summary | None = None
    companions: dict[str, float] = {}
    """Of one iteration, summed over ranks: seconds (``cpu_s``: 25th percentile) and counts (``waits``: mean)."""
    bounds: list[Bound] = []
    """That were given with the number."""

    @property
    def key(self) -> str:
        """Name and point: ``latency[message_bytes=4096]``."""
        return metric_key(self.name, self.at)


def metric_name(key: str) -> str:
    """The name in such a key: ``latency`` of ``latency[message_bytes=4096]``."""
    return key.partition("[")[0]


def metric_key(name: str, at: dict[str, Scalar]) -> str:
    """Join a metric's name and its point into the key used in files and tables."""
    if not at:
        return name
    return f"{name}[{','.join(f'{k}={v}' for k, v in sorted(at.items()))}]"
