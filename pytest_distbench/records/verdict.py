"""The answer for one metric of one case."""

from __future__ import annotations

from pytest_distbench.records.bound import Bound
from pytest_distbench.records.kinds import VERDICT_KINDS, OfKind, VerdictName, verdict_kind
from pytest_distbench.records.metric import Scalar, metric_name
from pytest_distbench.records.record import Number

TAIL = "tail"
"""Companion of a verdict: the 95th percentile of the iterations over the launch's value. Of the baseline that of the
launch where it is largest, of this run where it is smallest."""


class Verdict(OfKind, frozen=True, kw_only=True):
    """The answer for one metric of one case."""

    metric: str
    """Name and point: ``latency[message_bytes=4096]``."""
    kind: VerdictName
    unit: str
    current: Number | None = None
    """Median over launches; of a convergence metric the mean over seeds."""
    baseline: Number | None = None
    ratio: float | None = None
    """current / baseline, of a clock that of the fast sides, which are judged; None where one of them is missing."""
    limit: float | None = None
    """The largest change towards worse that is not called a regression, as a fraction."""
    detectable: float | None = None
    """Smallest slowdown this comparison finds with 90 % power, as a fraction; None where nothing is estimated."""
    launches: int = 0
    baseline_launches: int = 0
    reason: str = ""
    at: dict[str, Scalar] = {}
    facts: dict[str, Scalar] = {}
    differences: list[str] = []
    """How a fingerprint changed, one sentence each."""
    companions: dict[str, tuple[float, float]] = {}
    """Quieter witnesses of the clock: (baseline, this run); and :data:`TAIL`."""
    bounds: list[Bound] = []
    """That the value had to keep to, whether it did or not."""

    def __post_init__(self) -> None:
        super().__post_init__()
        verdict_kind(self.kind)

    @property
    def name(self) -> str:
        """The metric's name, without its point."""
        return metric_name(self.metric)

    @property
    def is_judged(self) -> bool:
        """Whether it counts: the metric's kind is judged, or a bound of it is."""
        return super().is_judged or bool(self.bounds)

    @property
    def is_failure(self) -> bool:
        """Whether this verdict alone fails a test under the default policy."""
        return VERDICT_KINDS[self.kind].fails
