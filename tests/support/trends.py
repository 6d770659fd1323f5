"""Simulated courses of metrics over many runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pytest_distbench.records.metric import Sample
from pytest_distbench.records.record import replace
from pytest_distbench.tools.history import Point, Trend
from support.results import result


def steps(runs: int, *levels: float) -> list[float]:
    """A series with so many runs on each level, almost without noise."""
    return [level * (1 + 1e-6 * i) for level in levels for i in range(runs)]


def daily(values: list[float], *, metric: str = "step", case: str = "ws2") -> Trend:
    """A time that had these values, a run a day."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    points = [
        Point((begin + timedelta(days=i)).isoformat(), f"{i:02}".rjust(10, "c") + "0" * 30, value)
        for i, value in enumerate(values)
    ]
    measured = result()
    measured = replace(measured, case=replace(measured.case, id=case))
    return Trend(result=measured, sample=Sample(name=metric, unit="s", better="lower", value=1.0), points=points)
