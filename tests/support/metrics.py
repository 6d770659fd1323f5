"""Measurements, launches, stored metrics and rules with little typing."""

from __future__ import annotations

from typing import Any

from pytest_distbench.judging.metric import Circumstances
from pytest_distbench.records.case import BaselineMetric
from pytest_distbench.records.kinds import Better
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample, Summary

STORED = [1.00, 1.02, 0.98, 1.01, 0.99, 1.03, 0.97, 1.00, 1.01, 0.99]


def metric(value: float | None, better: Better = "lower") -> Sample:
    return Sample(name="latency", unit="s", better=better, value=value)


def baseline(
    values: list[float | None] | list[float], better: Better = "lower", tolerance: float | None = None
) -> BaselineMetric:
    return BaselineMetric(better=better, unit="s", launches=list(values), tolerance=tolerance)


def rule(**changes: object) -> Circumstances:
    return Circumstances(**({"tolerance": 0.1, "comparisons": 50, "max_launches": 5} | changes))  # type: ignore[arg-type]


def timed(value: float, *, fastest: float = 0.9, slow: float = 1.2) -> Sample:
    """A launch whose minimum and p95 are these multiples of its value."""
    summary = Summary(
        n=50,
        minimum=fastest * value,
        p25=value,
        median=value,
        p95=slow * value,
        p99=slow * value,
        mean=value,
        stdev=0.1,
    )
    return Sample(name="latency", unit="s", better="lower", value=value, summary=summary)


def passed(*measurements: Sample, index: int = 0, **changes: Any) -> LaunchRecord:
    """A launch that measured these."""
    return LaunchRecord(index=index, outcome="passed", wall_s=1.0, measurements=list(measurements), **changes)
