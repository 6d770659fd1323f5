"""Neighbours: adjacent sizes of a sweep, judged together besides each alone. Pure, no I/O.

Code that became slower is slower over a range of sizes; a size that is slower alone was more often disturbed. So runs
of two, four and eight neighbours are judged once more as one number, their geometric mean in each launch, by the rule
for each of them: what their noise has in common is in the noise of the mean. A run regressed, or improved, where its
mean did, and each of its sizes moved that way by more than the tolerance; then all its sizes did.

The error rate of the sizes is spent once: half of it on the sizes alone, which therefore need stronger evidence than
they would without neighbours, and the rest in equal parts on the runs of each length. What that
finds is in docs/dev/rules.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample, Spread, metric_key, without
from pytest_distbench.records.record import replace

AXIS = "message_bytes"
"""What sizes are called in the point of a metric."""

FARTHEST = 4.0
"""Sizes further apart than this factor are no neighbours: other code may send them."""

LENGTHS = (2, 4, 8)
"""Of runs. One begins in the middle of the one before, the last ends with the sweep."""

LONE_SHARE = 0.5
"""Of a size's error rate, for the size alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Neighbours in a row.

    Attributes:
        key: for all of them together; its name is that of the metric and the length.
        share: of the error rate of one comparison.
    """

    keys: tuple[str, ...]
    sizes: tuple[float, ...]
    key: str
    share: float


def find_runs(metrics: Iterable[Sample]) -> list[Run]:
    """The runs among noisy metrics of one name and point but for the size, the shortest first."""
    series: dict[str, list[tuple[float, Sample]]] = {}
    for metric in metrics:
        size = metric.at.get(AXIS)
        if metric.is_noisy and isinstance(size, int | float) and not isinstance(size, bool) and size > 0:
            series.setdefault(metric_key(metric.name, without(metric.at, AXIS)), []).append((size, metric))
    runs = [run for sizes in series.values() for row in _rows(sizes) for run in _runs_of(row)]
    return sorted(runs, key=lambda run: len(run.keys))


def error_share(key: str, runs: Iterable[Run]) -> float:
    """The share of its error rate that a metric has for itself: all of it without a neighbour."""
    return LONE_SHARE if any(key in run.keys for run in runs) else 1.0


def as_one(launch: LaunchRecord, run: Run) -> Sample | None:
    """A run as one metric of a launch; None where the launch has not all of it."""
    found = {m.key: m for m in launch.measurements if not launch.only or m.key in launch.only}
    metrics = [found[key] for key in run.keys if key in found]
    is_whole = len(metrics) == len(run.keys) and all(m.value is not None and m.value > 0 for m in metrics)
    return _together(metrics) if is_whole else None


def stored_together(metrics: Sequence[Sequence[Sample]]) -> list[Sample]:
    """What a baseline holds of a run, as one metric; empty where not every launch measured all of it."""
    if len(set(map(len, metrics))) > 1 or any(m.value is None or m.value <= 0 for metric in metrics for m in metric):
        return []
    return [_together(launch) for launch in zip(*metrics, strict=True)]


def _rows(sizes: Sequence[tuple[float, Sample]]) -> Iterator[list[tuple[float, Sample]]]:
    """The sizes in order, in rows without a gap."""
    row: list[tuple[float, Sample]] = []
    for size, metric in sorted(sizes, key=lambda item: item[0]):
        if row and size > FARTHEST * row[-1][0]:
            yield row
            row = []
        row.append((size, metric))
    yield row


def _runs_of(row: Sequence[tuple[float, Sample]]) -> Iterator[Run]:
    """All runs of a row; those of one length share what that length may spend, at most a comparison's whole rate."""
    lengths = [length for length in LENGTHS if length <= len(row)]
    for length in lengths:
        last = len(row) - length
        starts = sorted({*range(0, last + 1, length // 2), last})
        share = min(1.0, (1 - LONE_SHARE) / len(lengths) * len(row) / len(starts))
        for start in starts:
            sizes, metrics = zip(*row[start : start + length], strict=True)
            at = {**metrics[0].at, AXIS: f"{sizes[0]}..{sizes[-1]}"}
            key = metric_key(f"{length} of {metrics[0].name}", at)
            yield Run(keys=tuple(m.key for m in metrics), sizes=sizes, key=key, share=share)


def _together(metrics: Sequence[Sample]) -> Sample:
    spreads = [m.spread for m in metrics if m.spread is not None]
    return replace(
        metrics[0],
        value=_mean([m.value for m in metrics if m.value is not None]),
        spread=_spread(spreads) if len(spreads) == len(metrics) else None,
        identity={},
        facts={},
        companions={},
        bounds=[],
    )


def _spread(spreads: Sequence[Spread]) -> Spread:
    names = ("minimum", "p25", "median", "p95", "p99", "mean", "stdev")
    means = {name: _mean([getattr(s, name) for s in spreads]) for name in names}
    return replace(Spread(n=min(s.n for s in spreads)), **means)


def _mean(values: Sequence[float]) -> float:
    """The geometric mean; in this form no value overflows, and the order of two rows is kept."""
    return float(math.prod(value ** (1 / len(values)) for value in values))
