"""Screen by few launches whether a case is suspicious, and judge neighbouring sizes together. Pure, no I/O.

A wrong screening costs some seconds, so it may be sensitive: there is no reserve for an environment shift, and its
threshold is far below the tolerance. Launches of the candidate are compared with the stored ones, on logarithms, by
five kinds of evidence, of which the strongest counts:

- the lower quantile of each metric, as in ``thresholds``;
- all of its iterations, by each of two means: the lower quantile does not show that most of them became slow;
- the CPU time of all ranks per iteration: while other processes run, work that computes takes longer, and hardly any
  more CPU time. It shows what computes more, and nothing that waits;
- all points of a name together, by their geometric mean: the sizes of a sweep.

After the first launch any evidence of a slowdown asks for a second one, and that for a third
(:data:`SCREENING_LAUNCHES`). What then exceeds the threshold is *suspicious*: the larger of half of the tolerance
(:data:`SHARE_OF_TOLERANCE`) and what the noise between launches allows, at error rates that let :data:`CONFIRMED` cases
of a healthy run be suspicious on average, and that add :data:`ADDED` launches to a healthy case. Environment shifts add
to both; benchmarks/verdict_rules.py measures it.

**Neighbours.** Code that became slower is slower over a range of sizes; a size that is slower alone was more often
disturbed. So runs of two, four and eight adjacent sizes of a sweep are judged once more as one number, their geometric
mean in each launch, by the rule for each of them: their common noise is in the noise of the mean. A run regressed, or
improved, if its mean did, and each of its sizes changed that way by more than the tolerance; then all its sizes did.
The error rate of the sizes is spent once: half of it on the sizes alone, which therefore need stronger evidence than
they would without neighbours, and the rest in equal parts on the runs of each length. docs/dev/rules.md has the
results.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_distbench.judging.entry import FEWEST_TO_SPREAD
from pytest_distbench.judging.stats import normal_quantile
from pytest_distbench.judging.terms import Terms, accepted_changes, by_metric, staleness
from pytest_distbench.judging.thresholds import (
    LEAST_OF_ALL,
    WHOLES,
    are_timed,
    both_by_all_iterations,
    fast_logs,
    typical_noise,
)
from pytest_distbench.records.case import BaselineEntry, Case
from pytest_distbench.records.kinds import METRIC_KINDS, OfKind
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import CPU_S, CPU_SPREAD, Sample, Spread, metric_key, metric_name, without
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import Finding
from pytest_distbench.units import is_size

SCREENING_LAUNCHES = 3  # of the candidate, at most: from there on interleaved launches are cheaper

SHARE_OF_TOLERANCE = 0.5  # a change below this share of the tolerance is never looked at more closely

CONFIRMED = 0.3  # average number of cases of a healthy run that are suspicious

ADDED = 0.2  # healthy cases that ask for a second launch

KINDS = 5  # kinds of evidence, which share the error rate of a metric

FEWEST_POINTS = 3  # of a name, to be judged together

SEEN_SHARE = 0.8  # a slowdown that is found less often is not covered

SUSPICIOUS = 1.0  # from here on the evidence exceeds its threshold

LEAST = 1e-6  # smallest divisor, and smallest evidence that counts

_HALVINGS = 30
_LARGEST = 5.0  # as a logarithm


AXIS = "message_bytes"  # axis of sizes in the point of a metric

FARTHEST = 4.0  # sizes further apart than this factor are no neighbours: other code may send them

LENGTHS = (2, 4, 8)  # lengths of runs. One begins in the middle of the one before, the last ends with the sweep.

LONE_SHARE = 0.5  # of a size's error rate, for the size alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """Run of neighbouring sizes.

    Attributes:
        key: key of all sizes together; its name is made of the metric's name and the number of sizes.
        share: share of a comparison's error rate that the run may spend.
    """

    keys: tuple[str, ...]
    sizes: tuple[float, ...]
    key: str
    share: float


def find_runs(metrics: Iterable[Sample]) -> list[Neighbours]:
    """The runs among noisy metrics that differ in size alone, the shortest first."""
    series: dict[str, list[tuple[float, Sample]]] = {}
    for metric in metrics:
        size = metric.at.get(AXIS)
        if metric.is_noisy and isinstance(size, int | float) and not isinstance(size, bool) and size > 0:
            series.setdefault(metric_key(metric.name, without(metric.at, AXIS)), []).append((size, metric))
    runs = [run for sizes in series.values() for row in _rows(sizes) for run in _runs_of(row)]
    return sorted(runs, key=lambda run: len(run.keys))


def error_share(key: str, runs: Iterable[Neighbours]) -> float:
    """Share of a comparison's error rate for a metric alone; runs of sizes have the rest. 1.0 without neighbours."""
    return LONE_SHARE if any(key in run.keys for run in runs) else 1.0


def as_one(launch: LaunchRecord, run: Neighbours) -> Sample | None:
    """Geometric mean of a launch's samples at neighbouring sizes, as one sample; None if it lacks one of them."""
    found = {m.key: m for m in launch.measurements if not launch.only or m.key in launch.only}
    metrics = [found[key] for key in run.keys if key in found]
    is_whole = len(metrics) == len(run.keys) and all(m.value is not None and m.value > 0 for m in metrics)
    return _together(metrics) if is_whole else None


def stored_together(metrics: Sequence[Sequence[Sample]]) -> list[Sample]:
    """Geometric mean over neighbouring sizes in each launch; ``metrics``: samples by size. [] if one is missing."""
    if len(set(map(len, metrics))) > 1 or any(m.value is None or m.value <= 0 for metric in metrics for m in metric):
        return []
    return [_together(launch) for launch in zip(*metrics, strict=True)]


def _rows(sizes: Sequence[tuple[float, Sample]]) -> Iterator[list[tuple[float, Sample]]]:
    """Split the sizes, in order, at gaps."""
    row: list[tuple[float, Sample]] = []
    for size, metric in sorted(sizes, key=lambda item: item[0]):
        if row and size > FARTHEST * row[-1][0]:
            yield row
            row = []
        row.append((size, metric))
    yield row


def _runs_of(row: Sequence[tuple[float, Sample]]) -> Iterator[Neighbours]:
    """Runs of 2, 4 and 8 sizes in a gapless row of sizes, each with its share of a comparison's error rate."""
    lengths = [length for length in LENGTHS if length <= len(row)]
    for length in lengths:
        last = len(row) - length
        starts = sorted({*range(0, last + 1, length // 2), last})
        share = min(1.0, (1 - LONE_SHARE) / len(lengths) * len(row) / len(starts))
        for start in starts:
            sizes, metrics = zip(*row[start : start + length], strict=True)
            at = {**metrics[0].at, AXIS: f"{sizes[0]}..{sizes[-1]}"}
            key = metric_key(f"{length} of {metrics[0].name}", at)
            yield Neighbours(keys=tuple(m.key for m in metrics), sizes=sizes, key=key, share=share)


def _together(metrics: Sequence[Sample]) -> Sample:
    spreads = [m.spread for m in metrics if m.spread is not None]
    spread = None
    if len(spreads) == len(metrics):
        names = ("minimum", "p25", "median", "p95", "p99", "mean", "stdev")
        means = {name: _mean([getattr(s, name) for s in spreads]) for name in names}
        spread = replace(Spread(n=min(s.n for s in spreads)), **means)
    value = _mean([m.value for m in metrics if m.value is not None])
    return replace(metrics[0], value=value, spread=spread, identity={}, facts={}, companions={}, bounds=[])


def _mean(values: Sequence[float]) -> float:
    """The geometric mean; in this form no value overflows, and the order of two rows is kept."""
    return float(math.prod(value ** (1 / len(values)) for value in values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Evidence that some metrics became worse, for :class:`Screening`. Logarithms, positive towards worse.

    Attributes:
        keys: keys of these metrics.
        worse_by: difference of the launches from the stored ones.
        sigma: standard deviation between stored launches.
        stored, launches: numbers of launches in the baseline and in this run.
        floor: half of the tolerance.
        asking, confirming: error rates at which it asks for another launch, and at which it is suspicious in the end.
        is_timing: whether it covers everything that takes longer, and not only what computes more.
    """

    keys: tuple[str, ...]
    worse_by: float
    sigma: float
    stored: int
    launches: int
    floor: float
    asking: float
    confirming: float
    is_timing: bool = True

    def limit(self, launches: int) -> float:
        """Difference above which this many launches are evidence of a slowdown."""
        rate = self.confirming if launches >= SCREENING_LAUNCHES else self.asking
        return max(self.floor, normal_quantile(1 - min(rate, 0.5)) * self._error(launches))

    @property
    def is_loud(self) -> bool:
        return self.worse_by > self.limit(self.launches)

    @property
    def sees(self) -> float:
        """The smallest slowdown, as a logarithm, that is suspicious in :data:`SEEN_SHARE` of all runs.

        First and last launch must both exceed their thresholds, as if they were independent. A machine that is faster
        than the baseline's hides that much of a slowdown.
        """
        low, high, normal = 0.0, _LARGEST, statistics.NormalDist()
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            above = [(middle - self.limit(n), self._error(n)) for n in (1, SCREENING_LAUNCHES)]
            chance = math.prod(normal.cdf(by / error) if error > 0 else float(by > 0) for by, error in above)
            low, high = (low, middle) if chance >= SEEN_SHARE else (middle, high)
        return high + max(0.0, -self.worse_by - self._error(self.launches))

    def _error(self, launches: int) -> float:
        return self.sigma * math.sqrt(1 / self.stored + 1 / launches)


class Screening(tuple[Evidence, ...]):
    """Evidence on the timings of a case."""

    def asks(self, metric: str) -> bool:
        """Whether a timing looks slower after so few launches that another one is needed to know."""
        found = [e for e in self if metric in e.keys]
        return any(e.is_loud and e.launches < SCREENING_LAUNCHES for e in found) and any(e.is_timing for e in found)

    def suspicion_after(self, findings: Sequence[Finding]) -> float:
        """How suspicious a case is with these findings, from :data:`SUSPICIOUS` on.

        Below that, but above 0, interleaved launches would show more, if there is time: a faster machine may hide a
        slowdown.
        """
        left = [f for f in findings if is_timing(f, f.unit) and f.is_judged]
        loudest = max((e.worse_by / max(e.limit(e.launches), LEAST) for e in self), default=0.0)
        if any(f.row.may_be_confirmed or f.is_undecided for f in left):
            return max(loudest, SUSPICIOUS)
        is_open = any(f.code == "low-power" or f.kind == "improved" for f in left)
        return max(loudest, LEAST) if is_open or any(e.is_loud for e in self) else 0.0

    def is_suspicious(self, metric: str) -> bool:
        return any(e.is_loud for e in self if metric in e.keys)

    def sees(self, metric: str) -> float | None:
        """The smallest slowdown of a metric, as a fraction, that would be suspicious; None if it is no timing."""
        found = [e.sees for e in self if metric in e.keys and e.is_timing]
        return math.expm1(min(found)) if found else None


def is_timing(metric: OfKind, unit: str) -> bool:
    """Whether a number depends on how fast the machine is; sizes do not."""
    return METRIC_KINDS[metric.better].is_noisy and not is_size(unit)


def screen(
    terms: Terms, case: Case, launches: Sequence[LaunchRecord], entry: BaselineEntry, *, comparisons: int
) -> Screening:
    """Collect the evidence on the timings of a case."""
    terms = terms.of(launches)
    found = {key: m for key, m in by_metric(launches).items() if terms.wants(m[0].name)}
    tolerances = accepted_changes(terms, launches, entry)
    stored = {} if staleness(entry, case) else entry.metrics
    timings = {
        key: m
        for key, m in found.items()
        if is_timing(m[0], m[0].unit) and m[0].is_judged and key in stored and stored[key][0].better == m[0].better
        if all(one.value is not None and one.value > 0 for one in [*m, *stored[key]])
    }
    points: dict[str, list[str]] = {}
    for key in timings:
        points.setdefault(metric_name(key), []).append(key)
    names = [Neighbours(keys=tuple(keys), sizes=(), key=name, share=1.0) for name, keys in points.items()]
    names = [run for run in names if len(run.keys) >= FEWEST_POINTS]
    noise = typical_noise(stored)
    evidence: list[Evidence] = []

    def add(
        keys: tuple[str, ...],
        new: Sequence[float],
        old: Sequence[float],
        sigma: float,
        sign: float,
        *,
        least: float = 0.0,
        is_timing: bool = True,
    ) -> None:
        """Add evidence from the logarithms of each launch: each kind may spend a fifth of the metrics' error rate.

        ``least`` sets the floor, as a fraction.
        """
        accepted = SHARE_OF_TOLERANCE * math.log1p(min(tolerances[key] for key in keys))
        evidence.append(
            Evidence(
                keys=keys,
                worse_by=sign * (statistics.fmean(new) - statistics.fmean(old)),
                sigma=sigma,
                stored=len(old),
                launches=len(new),
                floor=math.log1p(least) if least else accepted,
                asking=ADDED / max(1, len(timings)) * len(keys) / KINDS,
                confirming=CONFIRMED / max(1, comparisons) * len(keys) / KINDS,
                is_timing=is_timing,
            )
        )

    for key, measurements in timings.items():
        old, new = _logs(stored[key], measurements)
        sigma = max(_spread(old), noise.get(metric_name(key), 0.0))
        add((key,), new, old, sigma, METRIC_KINDS[stored[key][0].better].sign)
        for by_all in filter(None, (both_by_all_iterations(stored[key], measurements, of) for of in WHOLES)):
            floor, (old, new) = max(tolerances[key], LEAST_OF_ALL), map(fast_logs, by_all)
            add((key,), new, old, _spread(old), METRIC_KINDS[stored[key][0].better].sign, least=floor, is_timing=False)
        then, sigma = (stored[key][0].companions.get(name, 0.0) for name in (CPU_S, CPU_SPREAD))
        now = [m.companions.get(CPU_S, 0.0) for m in measurements]
        if sigma > 0 and min(then, *now) > 0:
            old, new = [math.log(then)] * len(stored[key]), [math.log(seconds) for seconds in now]
            add((key,), new, old, sigma, 1.0, is_timing=False)
    for run in names:
        known = stored_together([stored[key] for key in run.keys])
        together = [m for launch in launches if (m := as_one(launch, run)) is not None]
        if known and together:
            old, new = _logs(known, together)
            add(run.keys, new, old, _spread(old), METRIC_KINDS[known[0].better].sign)
    return Screening(evidence)


def _logs(stored: Sequence[Sample], current: Sequence[Sample]) -> tuple[list[float], list[float]]:
    timed = are_timed(stored) and are_timed(current)
    return fast_logs(stored, timed=timed), fast_logs(current, timed=timed)


def _spread(launches: Sequence[float]) -> float:
    return statistics.stdev(launches) if len(launches) >= FEWEST_TO_SPREAD else 0.0
