"""What a calibration found."""

from __future__ import annotations

from pytest_distbench.records.case import Case
from pytest_distbench.records.record import Record


class MetricNoise(Record, frozen=True, kw_only=True):
    """What a calibration found about one metric."""

    metric: str
    unit: str
    median: float
    launches: int
    sigma: float
    """Standard deviation of the logarithm between launches; 0.1 is about 10 %."""
    drift: float
    """The same between rounds, beyond what ``sigma`` explains; 0 where none was seen."""
    iterations_share: float | None
    """Share of the variance between launches that more iterations would take away, 0 to 1; None: not known."""
    detectable: dict[str, float]
    """Smallest slowdown found nine times in ten, as a fraction, for ``"stored+new"`` launches."""
    tolerance: float
    """Proposed: what can be promised with the default number of launches."""
    launches_needed: int | None
    """New launches, and as many stored, that hold the wanted tolerance; None: no number that was tried."""


class CaseNoise(Record, frozen=True, kw_only=True):
    """What a calibration found about one case, the noisiest metric first."""

    case: Case
    launch_s: float
    """Seconds of the median launch."""
    rounds: list[int]
    """Launches of each round."""
    metrics: list[MetricNoise]
    alarms: list[str]
    """Metrics that the rule called regressed between two halves of the same code's launches."""
    comparisons: int
    """Of halves with each other."""


class Calibration(Record, frozen=True, kw_only=True):
    """The file ``distbench calibrate --json`` writes."""

    schema: int
    distbench: str
    platform: str
    software: dict[str, str]
    duration_s: float
    alpha: float
    """One-sided error rate of one comparison."""
    wanted_tolerance: float
    cases: list[CaseNoise]
