"""The decision rule of the plugin and those of its peers, each as a function of recorded launches.

The peers' rules are re-created from their sources and documentation.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from pytest_distbench.judging.case import compare
from pytest_distbench.judging.comparison import Comparison
from pytest_distbench.judging.deciders import decide
from pytest_distbench.judging.entry import are_enough, make_baseline
from pytest_distbench.judging.screening import LEAST, SCREENING_LAUNCHES, SUSPICIOUS, screen
from pytest_distbench.judging.terms import Terms
from pytest_distbench.judging.thresholds import LOOKS, SHIFT, Circumstances
from pytest_distbench.records.case import Case, Conditions
from pytest_distbench.records.kinds import distribution, nearest_rank
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample, Spread
from pytest_distbench.run.confirm.rule import StoredComparison, confirm

COMPARISONS = 50
"""Tests of a run: they share its error rate, and the chance of a red run is told for as many."""

TOLERANCE = 0.1

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Launch:
    """Seconds of each iteration of one launch, in order; without ``keeps_all`` its fast side alone is judged."""

    iterations: Array
    keeps_all: bool = True

    @functools.cached_property
    def spread(self) -> Spread:
        t = self.iterations
        p25, median, p99 = np.quantile(t, (0.25, 0.5, 0.99))
        times = distribution(t.tolist()) if self.keeps_all else []
        return Spread(
            n=len(t),
            minimum=float(t.min()),
            p25=float(p25),
            median=float(median),
            p95=float(nearest_rank(t.tolist(), 0.95)),
            p99=float(p99),
            mean=float(t.mean()),
            stdev=float(t.std()),
            geometric_mean=statistics.geometric_mean(times) if times else None,
        )

    @functools.cached_property
    def measurement(self) -> Sample:
        """As the plugin would have recorded it."""
        return Sample(name="t", unit="s", better="lower", value=self.spread.p25, spread=self.spread)

    @functools.cache  # noqa: B019 # launches live as long as the program
    def slowed(self, factor: float) -> Launch:
        return self.shaped(lambda times: times * factor)

    def shaped(self, shape: Callable[[Array], Array], *, keeps_all: bool | None = None) -> Launch:
        """With other iterations."""
        return Launch(shape(self.iterations), self.keeps_all if keeps_all is None else keeps_all)


Launches = Sequence[Launch]


@dataclass(frozen=True)
class Answer:
    """What a rule says: the change it judges (minus infinity: not significant), and how many launches it looked at.

    And whether that made it run launches in turns.
    """

    change: float
    launches: int = 1
    is_confirmed: bool = False


@dataclass(frozen=True)
class DecisionRule:
    """A rule, and the smallest change that is an alarm.

    It judges stored and new launches. One ``in_turns`` is given launches besides that ran soon after the new ones, of
    unchanged code, and by which factor the new code is slower.
    """

    name: str
    judge: Callable[..., Answer]
    least: float
    in_turns: bool = False


def as_needed(stored: Launches, tolerance: float) -> Launches:
    """Of the launches that an update could make, those that it makes: see ``judging.screening``."""
    terms = Terms(default_tolerance=tolerance, max_launches=len(stored), cores=1)
    records = _records(stored)
    count = next((n for n in range(1, len(stored)) if are_enough(terms, records[:n])), len(stored))
    return stored[:count]


def distbench(
    stored: Launches, new: Launches, *, shift: float = SHIFT, tolerance: float = TOLERANCE, needed: bool = False
) -> Answer:
    """Ours, in the loop of the plugin: launches are added while the answer is open. An alarm is a change of 1.

    Args:
        stored: of the baseline, or that could be.
        new: of the run.
        shift: the reserve for it, see :mod:`~pytest_distbench.judging.thresholds`.
        tolerance: as a fraction.
        needed: the baseline is made of as many as it needs.
    """
    stored = as_needed(stored, tolerance) if needed else stored
    baseline = [launch.measurement for launch in stored]
    rule = Circumstances(tolerance=tolerance, comparisons=COMPARISONS, max_launches=len(new), shift=shift)
    measurements = [launch.measurement for launch in new]
    count = 1
    while (found := decide(Comparison(candidate=measurements[:count], baseline=baseline, under=rule))).is_open:
        count += 1
    return Answer(float(found.kind == "regressed"), count)


ARMS = 3
CASE = Case(test="recorded", conditions=Conditions(world_size=1, backend="gloo", launcher="warm"), device="cpu")


def whole(
    stored: Launches,
    new: Launches,
    turns: Launches,
    factor: float = 1.0,
    *,
    least: float = SUSPICIOUS,
    shape: Callable[[Array], Array] | None = None,
) -> Answer:
    """Ours, where the revision that recorded the baseline is at hand: screened, and in turns what is as suspicious.

    With ``least=LEAST`` that is also what is too noisy to tell, as where the budget reaches so far.

    Three launches that followed each other stand for three in turns; who comes first changes from pair to pair.
    There are as many looks as launches for them.
    """
    terms = Terms(default_tolerance=TOLERANCE, max_launches=SCREENING_LAUNCHES, cores=1)
    entry = make_baseline(CASE, _records(stored), {})
    records = _records(new)
    for count in range(1, SCREENING_LAUNCHES + 1):
        screening = screen(terms, CASE, records[:count], entry, comparisons=COMPARISONS)
        findings = compare(terms, CASE, records[:count], entry, comparisons=COMPARISONS, screening=screening)
        suspicion = screening.suspicion_after(findings)
        if not any(finding.is_open for finding in findings):
            break
    if suspicion < least:
        return Answer(0.0, count)
    numbers = tuple(n for n in LOOKS if ARMS * n <= len(turns))
    for look in numbers:
        there = [[turns[ARMS * i + (i + arm) % ARMS] for i in range(look)] for arm in range(ARMS)]
        here = [launch.shaped(shape) if shape else launch.slowed(factor) for launch in there[0]]
        sides = _records(here), _records(there[1]), _records(there[2])
        known = StoredComparison(
            verdicts=findings, baseline=entry, tolerances={"t": TOLERANCE}, comparisons=COMPARISONS
        )
        findings = confirm(terms, CASE, known, sides, revision="then", cases=1)
        if not any(finding.is_open for finding in findings):
            break
    is_red = any(finding.kind == "regressed" for finding in findings)
    return Answer(float(is_red), count + ARMS * look, is_confirmed=True)


def _records(launches: Launches) -> list[LaunchRecord]:
    return [
        LaunchRecord(index=i, outcome="passed", wall_s=0.0, measurements=[launch.measurement])
        for i, launch in enumerate(launches)
    ]


def pytest_benchmark(statistic: str) -> Callable[[Launches, Launches], Answer]:
    """``--benchmark-compare-fail=min:5%``: one run against the last stored one (pytest_benchmark/utils.py)."""

    def rule(stored: Launches, new: Launches) -> Answer:
        then, now = (getattr(side.spread, statistic) for side in (stored[-1], new[0]))
        return Answer(now / then - 1)

    return rule


def asv(stored: Launches, new: Launches) -> Answer:
    """``asv continuous``: factor 1.1, and Mann-Whitney p < 0.002 on the samples of two processes (asv/_stats.py)."""
    then, now = _iterations(stored[-2:]), _iterations(new[:2])
    change = np.median(now) / np.median(then) - 1
    return Answer(float(change) if _mann_whitney(then, now) < 0.002 else -math.inf, 2)


def benchstat(stored: Launches, new: Launches) -> Answer:
    """``benchstat``: medians over runs, each run its mean, and Mann-Whitney p < 0.05 (golang.org/x/perf/benchmath)."""
    then, now = (np.array([launch.spread.mean for launch in side]) for side in (stored, new))
    change = np.median(now) / np.median(then) - 1
    return Answer(float(change) if _mann_whitney(then, now) < 0.05 else -math.inf, len(new))


def criterion(stored: Launches, new: Launches, *, resamples: int = 200) -> Answer:
    """Criterion.rs: bootstrap t-test p < 0.05, and the 95 % interval of the change of the mean is beyond 1 %.

    One run against the last (src/analysis/compare.rs, src/report.rs). Criterion.rs draws 100,000 resamples, we fewer.
    """
    then, now = stored[-1].iterations, new[0].iterations
    t = (now.mean() - then.mean()) / math.sqrt(then.var(ddof=1) / len(then) + now.var(ddof=1) / len(now))
    dice = np.random.default_rng(0)
    both = np.concatenate([then, now])
    null = dice.choice(both, (resamples, len(both)))
    left, right = null[:, : len(then)], null[:, len(then) :]
    error = np.sqrt(left.var(axis=1, ddof=1) / len(then) + right.var(axis=1, ddof=1) / len(now))
    p = np.mean(np.abs((right.mean(axis=1) - left.mean(axis=1)) / error) >= abs(t))
    means = [dice.choice(side, (resamples, len(side))).mean(axis=1) for side in (now, then)]
    low = np.quantile(means[0] / means[1] - 1, 0.025)
    return Answer(float(low) if p < 0.05 else -math.inf)


def megatron(stored: Launches, new: Launches) -> Answer:
    """Megatron-LM's golden values: median of the steady steps within 5 % of one stored value, either way."""
    then, now = (float(np.median(side.iterations[len(side.iterations) // 4 :])) for side in (stored[-1], new[0]))
    return Answer(abs(now / then - 1))


def github_action_benchmark(stored: Launches, new: Launches) -> Answer:
    """github-action-benchmark: more than ``alert-threshold`` 200 % of the previous value, here the mean."""
    return Answer(new[0].spread.mean / stored[-1].spread.mean - 1)


RULES: dict[str, DecisionRule] = {
    "distbench": DecisionRule("distbench", distbench, 0.5),
    "distbench, then interleaved A/B": DecisionRule("distbench, then interleaved A/B", whole, 0.5, in_turns=True),
    "the same, with time left": DecisionRule(
        "the same, with time left", functools.partial(whole, least=LEAST), 0.5, in_turns=True
    ),
    "pytest-benchmark min 5 %": DecisionRule("pytest-benchmark min", pytest_benchmark("minimum"), 0.05),
    "pytest-benchmark mean 10 %": DecisionRule("pytest-benchmark mean", pytest_benchmark("mean"), 0.10),
    "asv 1.1, p < .002": DecisionRule("asv", asv, 0.10),
    "benchstat p < .05": DecisionRule("benchstat", benchstat, 0.0),
    "Criterion.rs 1 %": DecisionRule("Criterion.rs", criterion, 0.01),
    "Megatron-LM 5 %": DecisionRule("Megatron-LM", megatron, 0.05),
    "github-action-benchmark 200 %": DecisionRule("github-action-benchmark", github_action_benchmark, 1.0),
}


def _iterations(launches: Launches) -> Array:
    return np.concatenate([launch.iterations for launch in launches])


def _mann_whitney(then: Array, now: Array) -> float:
    """Two-sided p: exact for a few values, else the normal approximation with continuity correction, without ties.

    As ``scipy.stats.mannwhitneyu`` has it, and thirty times faster.
    """
    n, m = len(then), len(now)
    u = float(np.searchsorted(np.sort(now), then).sum())
    u = min(u, n * m - u)
    if n * m <= 400:
        return min(1.0, 2 * float(_share_up_to(n, m)[math.floor(u)]))
    return min(1.0, 2 * float(ndtr((u + 0.5 - n * m / 2) / math.sqrt(n * m * (n + m + 1) / 12))))


@functools.cache
def _share_up_to(n: int, m: int) -> Array:
    """Cumulative distribution of U: the coefficients of the Gaussian binomial (n + m over n)."""
    counts = np.zeros(n * m + 1)
    counts[0] = 1
    for i in range(1, n + 1):
        for j in range(m + i, len(counts)):  # times 1 - q^(m + i)
            counts[len(counts) - 1 - (j - m - i)] -= counts[len(counts) - 1 - j]
        for j in range(i, len(counts)):  # over 1 - q^i
            counts[j] += counts[j - i]
    share: Array = counts.cumsum() / counts.sum()
    return share
