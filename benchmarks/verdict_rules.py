"""Decision rules side by side: false alarms on unchanged code, slowdowns found, launches used.

    python benchmarks/verdict_rules.py --data DIR [--live] [--json OUT] [--trials 100] [--seed 0]

DIR holds ``reg_*.parquet``, the iterations of recorded launches: columns tag (stretch of time), launch, W (ranks), op,
size (bytes), block, it (iteration) and t (seconds, maximum over ranks). A trial takes ten consecutive launches of one
point as the baseline and up to ten earlier or later ones as the run to be judged, so that the drift of the machine is
in it. A slowdown multiplies every iteration of the run.

*same stretch*: both from one stretch. *other stretch*: from two, between which the load of the machine had changed.
*across*: from anywhere in two stretches put end to end. The code is the same in all of them: every alarm is false.

``--live`` launches an all_reduce on this machine, in random order unchanged and with a slowdown planted in its body.

The peers' rules are re-created from their sources and documentation: as they come, and once more, marked *=*, with the
smallest change that counts raised until they raise no more false alarms than ours, over all unchanged trials together.
Only there can power be compared.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import random
import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from measuring import launched
from numpy.typing import NDArray
from scipy.special import ndtr

from pytest_distbench.devices import alone_on_this_host
from pytest_distbench.launch.warm import WarmLauncher
from pytest_distbench.records import BaselineMetric, Measurement, Summary
from pytest_distbench.report.tables import layout
from pytest_distbench.stats import nearest_rank
from pytest_distbench.verdict import Rule, judge

STORED = 10
NEW = 10
FEWEST_NEW = 5
COMPARISONS = 50
"""Tests of a run: they share its error rate, and the chance of a red run is told for as many."""

TOLERANCE = 0.1
SLOWDOWNS = (1.05, 1.10, 1.20, 1.50, 2.00)
COLUMNS = ("tag", "launch", "W", "op", "size", "block", "it", "t")
LIVE_LAUNCHES, LIVE_SLOWED = 30, 12

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Launch:
    """Seconds of each iteration of one launch, in order."""

    iterations: Array

    @functools.cached_property
    def summary(self) -> Summary:
        t = self.iterations
        p25, median, p99 = np.quantile(t, (0.25, 0.5, 0.99))
        return Summary(
            n=len(t),
            minimum=float(t.min()),
            p25=float(p25),
            median=float(median),
            p95=float(nearest_rank(t.tolist(), 0.95)),
            p99=float(p99),
            mean=float(t.mean()),
            stdev=float(t.std()),
        )

    @functools.cached_property
    def measurement(self) -> Measurement:
        """As the plugin would have recorded it."""
        return Measurement(name="t", unit="s", better="lower", value=self.summary.p25, summary=self.summary)

    @functools.cache  # noqa: B019 # launches live as long as the program
    def slowed(self, factor: float) -> Launch:
        return Launch(self.iterations * factor)


Launches = Sequence[Launch]


@dataclass(frozen=True)
class Trial:
    """Launches of a baseline, of a run of the same code, and of runs of slower code."""

    stored: Launches
    new: Launches
    slower: Mapping[float, Launches] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """What a rule says: the change it judges (minus infinity: not significant), and how many launches it looked at."""

    change: float
    launches: int = 1


@dataclass(frozen=True)
class DecisionRule:
    """A rule, and the smallest change that is an alarm."""

    name: str
    judge: Callable[[Launches, Launches], Answer]
    least: float


def distbench(stored: Launches, new: Launches) -> Answer:
    """Ours, in the loop of the plugin: launches are added while the answer is open. An alarm is a change of 1."""
    summaries = [launch.summary for launch in stored]
    baseline = BaselineMetric(
        better="lower",
        unit="s",
        launches=[s.p25 for s in summaries],
        minimum=[s.minimum for s in summaries],
        p95=[s.p95 for s in summaries],
    )
    rule = Rule(tolerance=TOLERANCE, comparisons=COMPARISONS, max_launches=len(new))
    measurements = [launch.measurement for launch in new]
    count = 1
    while (judgement := judge(measurements[:count], baseline, rule)).is_open:
        count += 1
    return Answer(float(judgement.verdict.kind == "regressed"), count)


def pytest_benchmark(statistic: str) -> Callable[[Launches, Launches], Answer]:
    """``--benchmark-compare-fail=min:5%``: one run against the last stored one (pytest_benchmark/utils.py)."""

    def rule(stored: Launches, new: Launches) -> Answer:
        then, now = (getattr(side.summary, statistic) for side in (stored[-1], new[0]))
        return Answer(now / then - 1)

    return rule


def asv(stored: Launches, new: Launches) -> Answer:
    """``asv continuous``: factor 1.1, and Mann-Whitney p < 0.002 on the samples of two processes (asv/_stats.py)."""
    then, now = _iterations(stored[-2:]), _iterations(new[:2])
    change = np.median(now) / np.median(then) - 1
    return Answer(float(change) if _mann_whitney(then, now) < 0.002 else -math.inf, 2)


def benchstat(stored: Launches, new: Launches) -> Answer:
    """``benchstat``: medians over runs, each run its mean, and Mann-Whitney p < 0.05 (golang.org/x/perf/benchmath)."""
    then, now = (np.array([launch.summary.mean for launch in side]) for side in (stored, new))
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
    return Answer(new[0].summary.mean / stored[-1].summary.mean - 1)


RULES: dict[str, DecisionRule] = {
    "distbench": DecisionRule("distbench", distbench, 0.5),
    "pytest-benchmark min 5 %": DecisionRule("pytest-benchmark min", pytest_benchmark("minimum"), 0.05),
    "pytest-benchmark mean 10 %": DecisionRule("pytest-benchmark mean", pytest_benchmark("mean"), 0.10),
    "asv 1.1, p < .002": DecisionRule("asv", asv, 0.10),
    "benchstat p < .05": DecisionRule("benchstat", benchstat, 0.0),
    "Criterion.rs 1 %": DecisionRule("Criterion.rs", criterion, 0.01),
    "Megatron-LM 5 %": DecisionRule("Megatron-LM", megatron, 0.05),
    "github-action-benchmark 200 %": DecisionRule("github-action-benchmark", github_action_benchmark, 1.0),
}

Stretches = Mapping[str, Mapping[str, Launches]]
"""Stretch of time -> point -> its launches in order."""


def read(folder: Path) -> Stretches:
    """Recorded launches, of points with enough of them.

    Raises:
        SystemExit: no such files, other columns, or too few launches.
    """
    files = sorted(folder.glob("reg_*.parquet"))
    if not files:
        raise SystemExit(f"{folder}: no reg_*.parquet there; wanted recorded launches, see --help")
    found: dict[str, dict[str, Launches]] = {}
    for file in files:
        frame = pd.read_parquet(file)
        missing = sorted(set(COLUMNS) - set(frame.columns))
        if missing:
            raise SystemExit(f"{file}: columns {', '.join(missing)} are missing; wanted are {', '.join(COLUMNS)}")
        frame = frame.sort_values(["launch", "block", "it"])
        for (tag, op, size, ranks), rows in frame.groupby(["tag", "op", "size", "W"]):
            launches = [Launch(one["t"].to_numpy(dtype=float)) for _, one in rows.groupby("launch")]
            if len(launches) >= STORED + FEWEST_NEW:
                found.setdefault(str(tag), {})[f"{op} {size} B, {ranks} ranks"] = launches
    if not found:
        raise SystemExit(f"{folder}: no point has the {STORED + FEWEST_NEW} launches that a trial needs")
    return found


@dataclass(frozen=True)
class Trials:
    """Trials on unchanged code by where their launches come from. Those of one stretch have slower runs too."""

    same: list[Trial]
    other: list[Trial]
    across: list[Trial]

    @classmethod
    def recorded(cls, data: Stretches, count: int, seed: int) -> Trials:
        """``count`` of each kind per point and stretch."""
        dice = random.Random(seed)
        same = [
            _with_slower(_apart(launches, dice))
            for points in data.values()
            for launches in points.values()
            for _ in range(count)
        ]
        pairs = [
            (data[before][point], data[after][point])
            for before in data
            for after in data
            if before != after
            for point in sorted(data[before].keys() & data[after].keys())
        ]
        other = [Trial(_window(a, STORED, dice), _window(b, NEW, dice)) for a, b in pairs for _ in range(count)]
        across = [_apart([*a, *b], dice) for a, b in pairs for _ in range(count)]
        return cls(same, other, across)

    @classmethod
    def live(cls, launches: Launches, slower: Mapping[float, Launches], count: int, seed: int) -> Trials:
        """``count`` trials over launches of this machine."""
        dice = random.Random(seed)
        trials = []
        for _ in range(count):
            trial = _apart(launches, dice)
            runs = {factor: _window(slow, NEW, dice) for factor, slow in slower.items()}
            trials.append(Trial(trial.stored, trial.new, runs))
        return cls(trials, [], [])


@dataclass(frozen=True)
class Score:
    """What a rule does, as fractions of the trials; None where there is no such trial."""

    false_alarms: float
    other_stretch: float | None
    across: float | None
    power: dict[float, float]
    mean_launches: float


@dataclass(frozen=True)
class Answers:
    """What a rule says in every trial, whatever change it then takes for an alarm."""

    same: list[Answer]
    other: list[Answer]
    across: list[Answer]
    slower: dict[float, list[Answer]]

    @classmethod
    def of(cls, rule: DecisionRule, trials: Trials) -> Answers:
        def unchanged(part: list[Trial]) -> list[Answer]:
            return [rule.judge(t.stored, t.new) for t in part]

        slower = {
            factor: [rule.judge(t.stored, t.slower[factor]) for t in trials.same] for factor in trials.same[0].slower
        }
        return cls(unchanged(trials.same), unchanged(trials.other), unchanged(trials.across), slower)

    @property
    def unchanged(self) -> list[Answer]:
        return self.same + self.other + self.across

    def score(self, least: float) -> Score:
        return Score(
            false_alarms=_alarms(self.same, least) or 0.0,
            other_stretch=_alarms(self.other, least),
            across=_alarms(self.across, least),
            power={factor: _alarms(answers, least) or 0.0 for factor, answers in self.slower.items()},
            mean_launches=float(np.mean([a.launches for a in self.same])),
        )

    def least_for(self, rate: float) -> float:
        """The smallest change that counts at which no more than this share of all unchanged trials is an alarm."""
        changes = sorted((a.change for a in self.unchanged), reverse=True)
        return changes[min(len(changes) - 1, math.floor(rate * len(changes) + 1e-9))]


def evaluate(trials: Trials) -> dict[str, Score]:
    """Every rule as it comes, and the peers' again at our rate of false alarms."""
    answers = {name: Answers.of(rule, trials) for name, rule in RULES.items()}
    ours = _alarms(answers["distbench"].unchanged, RULES["distbench"].least) or 0.0
    found = {name: answers[name].score(rule.least) for name, rule in RULES.items()}
    for name, rule in RULES.items():
        if name != "distbench":
            least = max(rule.least, answers[name].least_for(ours))
            found[f"{rule.name} = {least:.0%}"] = answers[name].score(least)
    return found


def table(scores: Mapping[str, Score]) -> list[str]:
    """The scores as lines."""
    factors = list(scores["distbench"].power)
    header = (
        "rule",
        "same stretch",
        "in 50",
        "other stretch",
        "across",
        *(f"+{f - 1:.0%}" for f in factors),
        "launches",
    )
    rows = []
    for name, s in scores.items():
        alarms = (s.false_alarms, 1 - (1 - s.false_alarms) ** COMPARISONS, s.other_stretch, s.across)
        cells = ["-" if a is None else f"{a:.2%}" for a in alarms]
        cells[1] = f"{alarms[1]:.0%}"
        rows.append((name, *cells, *(f"{s.power[f]:.0%}" for f in factors), f"{s.mean_launches:.2f}"))
    return layout(header, rows)


def as_json(scores: Mapping[str, Score]) -> dict[str, Any]:
    """The scores as written to ``--json``."""
    rules = {
        name: {
            "false_alarms": s.false_alarms,
            "false_alarms_other_stretch": s.other_stretch,
            "false_alarms_across": s.across,
            "power": {str(factor): power for factor, power in s.power.items()},
            "mean_launches": s.mean_launches,
        }
        for name, s in scores.items()
    }
    return {"rules": rules}


def measure(progress: Callable[[str], None]) -> tuple[Launches, dict[float, Launches]]:
    """Launch the all_reduce of ``bodies`` here, unchanged and slowed, in random order.

    Raises:
        SystemExit: a launch failed.
    """
    plans = [1.0] * LIVE_LAUNCHES + [factor for factor in SLOWDOWNS for _ in range(LIVE_SLOWED)]
    random.Random(0).shuffle(plans)
    found: dict[float, list[Launch]] = {}
    with tempfile.TemporaryDirectory(prefix="distbench-") as name, alone_on_this_host(on_wait=progress):
        launcher = WarmLauncher(Path(name), uuid.uuid4().hex)
        try:
            for i, factor in enumerate(plans):
                progress(f"launch {i + 1} of {len(plans)}")
                found.setdefault(factor, []).append(_launch(launcher, Path(name), factor))
        finally:
            launcher.close()
    return found.pop(1.0), dict(sorted(found.items()))


def _launch(launcher: WarmLauncher, folder: Path, factor: float) -> Launch:
    record = launched(launcher, folder, "slowed_all_reduce", params={"factor": factor})
    [series] = [m.series for m in record.measurements if m.name == "iterations"]
    return Launch(np.array(series))


def _apart(launches: Launches, dice: random.Random) -> Trial:
    """Two windows that do not overlap, each of consecutive launches, either first."""
    count = min(NEW, len(launches) - STORED)
    gap = dice.randint(0, len(launches) - STORED - count)
    start = dice.randint(0, len(launches) - STORED - count - gap)
    if dice.random() < 0.5:
        later = start + STORED + gap
        return Trial(launches[start : start + STORED], launches[later : later + count])
    later = start + count + gap
    return Trial(launches[later : later + STORED], launches[start : start + count])


def _with_slower(trial: Trial) -> Trial:
    slower = {factor: [launch.slowed(factor) for launch in trial.new] for factor in SLOWDOWNS}
    return Trial(trial.stored, trial.new, slower)


def _window(launches: Launches, count: int, dice: random.Random) -> Launches:
    start = dice.randint(0, max(0, len(launches) - count))
    return launches[start : start + count]


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


def _alarms(answers: Sequence[Answer], least: float) -> float | None:
    return float(np.mean([a.change > least for a in answers])) if answers else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="DIR")
    parser.add_argument("--live", action="store_true")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the scores of --data, else of --live")
    parser.add_argument("--trials", type=int, default=100, help="per point and stretch (default: 100)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.data is None and not options.live:
        parser.error("nothing to judge: give --data DIR, --live, or both")
    if options.trials < 1:
        parser.error(f"--trials {options.trials}: wanted at least 1")
    found: list[dict[str, Score]] = []
    if options.data is not None:
        found.append(evaluate(Trials.recorded(read(options.data), options.trials, options.seed)))
        print("\n".join(table(found[-1])))
    if options.live:
        launches, slower = measure(lambda text: print(text, file=sys.stderr))
        found.append(evaluate(Trials.live(launches, slower, options.trials, options.seed)))
        print("\n".join(["", "live", *table(found[-1])]))
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(found[0]), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
