"""Measurements, launches, stored metrics and rules with little typing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_distbench.judging.comparison import Comparison
from pytest_distbench.judging.deciders import decide
from pytest_distbench.judging.thresholds import Circumstances
from pytest_distbench.records.kinds import Better
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample, Scalar, Spread
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import Finding

STORED = [1.00, 1.02, 0.98, 1.01, 0.99, 1.03, 0.97, 1.00, 1.01, 0.99]


def metric(value: float | None, better: Better = "lower") -> Sample:
    return Sample(name="latency", unit="s", better=better, value=value)


def baseline(values: Sequence[float | None], better: Better = "lower") -> list[Sample]:
    return baseline_of(values, better)


def baseline_of(
    launches: Sequence[float | None],
    better: Better = "lower",
    unit: str = "s",
    *,
    name: str = "latency",
    minimum: Sequence[float] = (),
    p95: Sequence[float] = (),
    whole: Sequence[float] = (),
    values: Sequence[float] = (),
    spread: float = 0.0,
    over_ranks: Sequence[float] = (),
    n: int = 0,
    at: Mapping[str, Scalar] | None = None,
    identity: Mapping[str, Scalar] | None = None,
    companions: Mapping[str, float] | None = None,
    ranks: int = 0,
) -> list[Sample]:
    """What a baseline holds of a metric; ``spread``: the curve of a second launch is this share off at its end."""
    made = []
    for i, value in enumerate(launches):
        inside = Spread(
            n=n,
            minimum=minimum[i] if minimum else 0.0,
            p95=p95[i] if p95 else 0.0,
            geometric_mean=whole[i] if whole else None,
            over_ranks=list(over_ranks),
        )
        sample = Sample(
            name=name,
            unit=unit,
            better=better,
            at=dict(at or {}),
            identity=dict(identity or {}),
            value=value,
            values=list(values),
            companions=dict(companions or {}),
            spread=None if inside == Spread() else inside,
            ranks=ranks,
        )
        made.append(sample)
    if spread:
        off = [*values[:-1], values[-1] * (1 + spread)]
        made.append(replace(made[0], value=off[-1], values=off))
    return made


def rule(**changes: object) -> Circumstances:
    return Circumstances(**({"tolerance": 0.1, "comparisons": 50, "max_launches": 5} | changes))  # type: ignore[arg-type]


def judge(current: Sequence[Sample], stored: Sequence[Sample], under: Circumstances) -> Finding:
    return decide(Comparison(candidate=current, baseline=stored, under=under))


def judge_pairs(pairs: Sequence[tuple[Sample | None, Sample | None]], under: Circumstances) -> Finding:
    """The finding on a metric that one side of each pair may not have."""
    there, here = ([pair[side] for pair in pairs] for side in (0, 1))
    lacking = replace(next(m for m in (*here, *there) if m is not None), value=None)
    known = [[m or lacking for m in side] if any(side) else [] for side in (there, here)]
    return decide(Comparison(candidate=known[1], baseline=known[0], under=under))


def timed(value: float, *, fastest: float = 0.9, slow: float = 1.2) -> Sample:
    """A launch whose minimum and p95 are these multiples of its value."""
    spread = Spread(
        n=50,
        minimum=fastest * value,
        p25=value,
        median=value,
        p95=slow * value,
        p99=slow * value,
        mean=value,
        stdev=0.1,
    )
    return Sample(name="latency", unit="s", better="lower", value=value, spread=spread)


def passed(*measurements: Sample, index: int = 0, **changes: Any) -> LaunchRecord:
    """A launch that measured these."""
    return LaunchRecord(index=index, outcome="passed", wall_s=1.0, measurements=list(measurements), **changes)
