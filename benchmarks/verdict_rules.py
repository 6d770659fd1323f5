"""Decision rules side by side: false alarms on unchanged code, slowdowns found, launches used.

    python benchmarks/verdict_rules.py --data DIR [--live] [--json OUT] [--trials 100] [--seed 0]

DIR holds ``reg_*.parquet``, the iterations of recorded launches: columns tag (stretch of time), launch, W (ranks), op,
size (bytes), block, it (iteration) and t (seconds, maximum over ranks). A trial takes ten consecutive launches of one
point as the baseline and up to ten earlier or later ones as the run to be judged, so that the drift of the machine is
in it. A slowdown multiplies every iteration of the run.

*same stretch*: both from one stretch. *other stretch*: from two, between which the load of the machine had changed.
*across*: from anywhere in two stretches put end to end. The code is the same in all of them: every alarm is false.

``--live`` launches an all_reduce on this machine, in random order unchanged and with a slowdown planted in its body.

*distbench, then interleaved A/B* is what a run does where the baseline commit is at hand: few launches,
and what they make suspicious in turns, made of launches that followed each other (*in turns*, *elsewhere*: the share
of unchanged tests that is, in the same stretch and in another one).

The peers' rules come as they are, and once more, marked *=*, with the smallest change that counts raised until they
raise no more false alarms than ours, over all unchanged trials together. Only there can power be compared.

A second table has our rule with less of a reserve for drift: false alarms, and the smallest slowdown that is found nine
times in ten, per stretch the median over its points. A third one has baselines of ten launches beside those of as many
as an update makes, by tolerance; in a fifth of the trials. A fourth one has runs of which some iterations are slower,
by the fast side alone and by all iterations too; in a quarter of the trials.

What it printed on two shared cores (``--trials 10``; a pair consists of launches that followed each other, seconds
apart, which is noisier than real interleaving). *unchanged*: red runs; *elsewhere*: after the load changed::

                                                unchanged  elsewhere  +20 %  +50 %  +100 %  launches
    stored numbers alone                           0.00 %     0.21 %    0 %   35 %    91 %       1.3
    then A/B of suspicious cases                   0.00 %     0.00 %   16 %   78 %    96 %       2.0
    and, with time left, of cases of low power     0.42 %     0.00 %   67 %   98 %   100 %        23

What the first three printed there, on eight points (all_reduce, all_gather, DDP steps; 2 and 4 ranks) of 122 launches
each, in a very busy (s1), a busy (s2) and a quiet stretch (s3). *in 50*: probability of a red run of 50 unchanged
tests; a plus: fraction of the slowdowns of that size that were found; *found in*: the smallest slowdown found nine
times in ten, the median over the points; *of*: launches of the baseline, on average::

    rule                            same stretch  in 50  other stretch  across  +5%  +10%  +20%  +50%  +100%  launches
    distbench                              0.00%     0%          0.23%   0.19%   0%    0%    1%   35%    91%      1.25
    pytest-benchmark min 5 %              37.75%   100%         43.29%  42.71%  50%   60%   75%   94%    99%      1.00
    pytest-benchmark mean 10 %            32.04%   100%         40.02%  39.38%  40%   48%   59%   83%    95%      1.00
    asv 1.1, p < .002                      5.42%    94%         13.85%  12.90%   8%   12%   22%   62%    92%      2.00
    benchstat p < .05                      2.92%    77%         25.65%  20.21%  10%   23%   52%   87%    97%     10.00
    Criterion.rs 1 %                      10.46%   100%         19.52%  17.31%  14%   18%   27%   57%    83%      1.00
    Megatron-LM 5 %                       86.54%   100%         90.60%  89.60%  86%   88%   90%   95%    99%      1.00
    github-action-benchmark 200 %          3.50%    83%          5.58%   5.52%   4%    5%    6%   15%    48%      1.00
    pytest-benchmark min = 261%            0.04%     2%          0.25%   0.15%   0%    0%    0%    0%     1%      1.00
    pytest-benchmark mean = 472%           0.12%     6%          0.21%   0.15%   0%    0%    0%    1%     2%      1.00
    asv = 298%                             0.00%     0%          0.29%   0.12%   0%    0%    0%    1%     3%      2.00
    benchstat = 117%                       0.00%     0%          0.27%   0.08%   0%    0%    0%    1%    22%     10.00
    Criterion.rs = 254%                    0.04%     2%          0.17%   0.23%   0%    0%    0%    1%     2%      1.00
    Megatron-LM = 633%                     0.04%     2%          0.17%   0.23%   0%    0%    0%    0%     1%      1.00
    github-action-benchmark = 472%         0.12%     6%          0.21%   0.15%   0%    0%    0%    1%     2%      1.00

    reserve  same stretch  other stretch  across  found in s1  found in s2  found in s3  launches
    0.4             0.00%          0.23%   0.19%         +95%         +90%         +75%      1.25
    0.2             0.00%          1.96%   1.31%         +75%         +75%         +60%      1.62
    0               0.04%          6.38%   4.29%         +65%         +60%         +50%      2.73

    tolerance   baseline    of  same stretch  other stretch  +100%  +200%
    10%              ten  10.0         0.00%          0.42%    92%   100%
    10%        as needed   9.9         0.00%          0.42%    92%   100%
    50%              ten  10.0         0.00%          0.00%    92%   100%
    50%        as needed   8.5         0.00%          0.00%    88%   100%
    100%             ten  10.0         0.00%          0.00%    43%   100%
    100%       as needed   6.2         0.00%          0.00%    42%   100%

By timings alone no rule has both few false alarms and sensitivity: a growing load slowed the lower quantile by more
than 15 %, and all quantiles up to the 75th percentile alike, by 30 to 34 %, as slower code does. Under a tolerance of
10 % nearly all baselines take ten launches here; quiet machines, whose launches vary by 1 %, stop at five.

With only some iterations slower, the share of red runs within one stretch, by stored numbers and by A/B. The first
four rows are harmless: a loop has as few as eight iterations here, and one of eight is more than a pause::

    slower iterations           mean  lower quantile alone  and all iterations      launches
    nothing                     +0 %              0 %, 0 %            0 %, 0 %    2.4 -> 3.5
    one iteration x 8          +31 %              0 %, 0 %            0 %, 4 %    3.5 -> 5.2
    the first tenth x 1.5       +6 %              0 %, 0 %            0 %, 0 %    2.4 -> 4.0
    10 % x 1.2                  +2 %              0 %, 0 %            0 %, 0 %    2.4 -> 3.8
    30 % x 7                  +168 %              0 %, 4 %           0 %, 79 %   5.2 -> 18.4
    50 % x 2                   +50 %             0 %, 17 %           0 %, 46 %   8.5 -> 13.3
    50 % x 7                  +300 %             0 %, 25 %          79 %, 96 %   9.8 -> 15.0
    67 % x 2                   +65 %             4 %, 58 %           4 %, 79 %  14.5 -> 17.1
    67 % x 7                  +391 %            12 %, 67 %          92 %, 96 %  13.2 -> 13.8
    90 % x 2                   +88 %            46 %, 88 %          50 %, 96 %  15.3 -> 16.9
    every second x 3          +100 %             0 %, 21 %           0 %, 75 %  10.0 -> 19.2
    the last half x 3         +100 %             0 %, 38 %           0 %, 75 %  15.2 -> 18.7
    a tail that grows to x 3   +96 %            29 %, 88 %          38 %, 92 %  14.5 -> 15.1
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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from decision_rules import (
    COMPARISONS,
    RULES,
    Answer,
    Array,
    DecisionRule,
    Launch,
    Launches,
    as_needed,
    distbench,
    whole,
)
from measuring import launched
from numpy.typing import NDArray

from pytest_distbench.judging.screening import SCREENING_LAUNCHES
from pytest_distbench.judging.thresholds import SHIFT
from pytest_distbench.launch.starters import LauncherSetup
from pytest_distbench.launch.starters.warm import WarmLauncher
from pytest_distbench.machine.locks import alone_on_this_host
from pytest_distbench.report import layout

STORED = 10
NEW = 10
FEWEST_NEW = 5
SLOWDOWNS = (1.05, 1.10, 1.20, 1.50, 2.00)
COLUMNS = ("tag", "launch", "W", "op", "size", "block", "it", "t")
LIVE_LAUNCHES, LIVE_SLOWED = 30, 12
TOLERANCES = (0.1, 0.5, 1.0)
RESERVES = (SHIFT, SHIFT / 2, 0.0)
STEPS = tuple(round(1 + i / 10, 1) for i in range(1, 21))
"""Slowdowns among which the smallest that is found :data:`POWER` of the times is looked for."""

POWER = 0.9


@dataclass(frozen=True)
class Trial:
    """Launches of a baseline, of a run of the same code, and of runs of slower code; the stretch they are from.

    And, in order, those that ran after the run, for rules that launch in turns.
    """

    stored: Launches
    new: Launches
    slower: Mapping[float, Launches] = field(default_factory=dict)
    turns: Launches = ()
    stretch: str = ""
    point: str = ""


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
            replace(_with_slower(_apart(launches, dice)), stretch=stretch, point=point)
            for stretch, points in data.items()
            for point, launches in points.items()
            for _ in range(count)
        ]
        pairs = [
            (data[before][point], data[after][point])
            for before in data
            for after in data
            if before != after
            for point in sorted(data[before].keys() & data[after].keys())
        ]
        other = [_of_two(a, b, dice) for a, b in pairs for _ in range(count)]
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
            trials.append(replace(trial, slower=runs))
        return cls(trials, [], [])


@dataclass(frozen=True)
class Score:
    """What a rule does, as fractions of the trials; None where there is no such trial."""

    false_alarms: float
    other_stretch: float | None
    across: float | None
    power: dict[float, float]
    mean_launches: float
    confirmed: float
    confirmed_elsewhere: float | None
    """The same of ``other_stretch``."""


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
            return [_judge(rule, t, t.new, 1.0) for t in part]

        slower = {
            factor: [_judge(rule, t, t.slower[factor], factor) for t in trials.same] for factor in trials.same[0].slower
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
            confirmed=float(np.mean([a.is_confirmed for a in self.same])),
            confirmed_elsewhere=float(np.mean([a.is_confirmed for a in self.other])) if self.other else None,
        )

    def least_for(self, rate: float) -> float:
        """The smallest change that counts at which no more than this share of all unchanged trials is an alarm."""
        changes: list[float] = sorted((a.change for a in self.unchanged), reverse=True)
        return changes[min(len(changes) - 1, math.floor(rate * len(changes) + 1e-9))]


def evaluate(trials: Trials) -> dict[str, Score]:
    """Every rule as it comes, and the peers' again at our rate of false alarms."""
    answers = {name: Answers.of(rule, trials) for name, rule in RULES.items()}
    ours = _alarms(answers["distbench"].unchanged, RULES["distbench"].least) or 0.0
    found = {name: answers[name].score(rule.least) for name, rule in RULES.items()}
    for name, rule in RULES.items():
        if not name.startswith("distbench"):
            least = max(rule.least, answers[name].least_for(ours))
            found[f"{rule.name} = {least:.0%}"] = answers[name].score(least)
    return found


def reserves(trials: Trials) -> list[str]:
    """Our rule with other reserves for drift, as lines: false alarms when the load changes against what is found."""
    stretches = list(dict.fromkeys(trial.stretch for trial in trials.same))
    rows = []
    for drift in RESERVES:
        rule = DecisionRule("distbench", functools.partial(distbench, shift=drift), RULES["distbench"].least)
        score = Answers.of(rule, trials).score(rule.least)
        alarms = (score.false_alarms, score.other_stretch, score.across)
        found = [_smallest_found(rule, [t for t in trials.same if t.stretch == stretch]) for stretch in stretches]
        cells = (*("-" if a is None else f"{a:.2%}" for a in alarms), *found, f"{score.mean_launches:.2f}")
        rows.append((f"{drift:g}", *cells))
    found_in = (f"found in {stretch}" for stretch in stretches)
    return layout(("reserve", "same stretch", "other stretch", "across", *found_in, "launches"), rows)


def baselines(trials: Trials) -> list[str]:
    """Our rule against baselines of all launches, and of as many as an update makes, as lines."""
    part = Trials(trials.same[::5], trials.other[::5], trials.across[::5])
    tripled = [[launch.slowed(3.0) for launch in trial.new] for trial in part.same]
    rows = []
    for tolerance in TOLERANCES:
        for needed in (False, True):
            judge = functools.partial(distbench, tolerance=tolerance, needed=needed)
            rule = DecisionRule("distbench", judge, RULES["distbench"].least)
            unchanged = [_alarms([judge(t.stored, t.new) for t in p], rule.least) for p in (part.same, part.other)]
            doubled = _power(rule, part.same, 2.0)
            found = _alarms([judge(t.stored, new) for t, new in zip(part.same, tripled, strict=True)], rule.least)
            stored = [len(as_needed(t.stored, tolerance)) if needed else len(t.stored) for t in part.same]
            cells = (*("-" if a is None else f"{a:.2%}" for a in unchanged), f"{doubled:.0%}", f"{found:.0%}")
            rows.append((f"{tolerance:.0%}", "as needed" if needed else "ten", f"{np.mean(stored):.1f}", *cells))
    return layout(("tolerance", "baseline", "of", "same stretch", "other stretch", "+100%", "+200%"), rows)


def _some(count: Callable[[int], NDArray[np.bool_]], factor: float) -> Callable[[Array], Array]:
    return lambda times: np.where(count(len(times)), times * factor, times)


def _share(share: float, factor: float) -> Callable[[Array], Array]:
    """Evenly spread."""
    return _some(lambda n: np.floor(np.arange(1, n + 1) * share) > np.floor(np.arange(n) * share), factor)


SHAPES: dict[str, Callable[[Array], Array]] = {
    "nothing": lambda times: times,
    "one iteration x 8": _some(lambda n: np.arange(n) == n // 2, 8.0),
    "the first tenth x 1.5": _some(lambda n: np.arange(n) * 10 < n, 1.5),
    "10 % x 1.2": _share(0.1, 1.2),
    **{f"{share:.0%} x {factor:g}": _share(share, factor) for share in (0.3, 0.5, 0.67, 0.9) for factor in (1.5, 2, 7)},
    "every second x 3": _some(lambda n: np.arange(n) % 2 == 1, 3.0),
    "the last half x 3": _some(lambda n: np.arange(n) * 2 >= n, 3.0),
    "bursts of a tenth, half of them x 3": _some(lambda n: np.arange(n) * 10 // n % 2 == 1, 3.0),
    "a tail that grows to x 3": lambda times: times * (1 + 2 * np.arange(len(times)) / len(times)),
}
"""What becomes of the iterations of a launch; the first four are healthy."""


def shapes(trials: Trials) -> list[str]:
    """Some iterations slower: red by the fast side alone, and by all iterations too, as lines."""
    part = trials.same[::4]
    rows = []
    for name, shape in SHAPES.items():
        cells = []
        for keeps_all in (False, True):
            found: list[list[Answer]] = [[], []]
            for trial in part:
                stored, turns = ([x.shaped(_SAME, keeps_all=keeps_all) for x in s] for s in (trial.stored, trial.turns))
                new = [launch.shaped(shape, keeps_all=keeps_all) for launch in trial.new]
                found[0].append(distbench(stored, new))
                found[1].append(whole(stored, new, turns, shape=shape))
            launches = np.mean([answer.launches for answer in found[1]])
            cells += [f"{_alarms(answers, 0.5) or 0.0:.0%}" for answers in found] + [f"{launches:.1f}"]
        change = np.mean([np.mean(shape(np.ones(len(x.iterations)))) for t in part for x in t.new]) - 1
        rows.append((name, f"{change:+.0%}", *cells))
    columns = ("stored", "in turns", "launches")
    header = ("iterations", "mean", *(f"{by}: {name}" for by in ("fast side", "and all") for name in columns))
    return layout(header, rows)


_SAME = SHAPES["nothing"]


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
        "in turns",
        "elsewhere",
    )
    rows = []
    for name, s in scores.items():
        alarms = (s.false_alarms, 1 - (1 - s.false_alarms) ** COMPARISONS, s.other_stretch, s.across)
        cells = ["-" if a is None else f"{a:.2%}" for a in alarms]
        cells[1] = f"{alarms[1]:.0%}"
        confirmed = ["-" if a is None else f"{a:.1%}" for a in (s.confirmed, s.confirmed_elsewhere)]
        rows.append((name, *cells, *(f"{s.power[f]:.0%}" for f in factors), f"{s.mean_launches:.2f}", *confirmed))
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
            "confirmed": s.confirmed,
            "confirmed_other_stretch": s.confirmed_elsewhere,
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
        launcher = WarmLauncher(LauncherSetup(directory=Path(name), session=uuid.uuid4().hex))
        try:
            for i, factor in enumerate(plans):
                progress(f"launch {i + 1} of {len(plans)}")
                found.setdefault(factor, []).append(_launch(launcher, Path(name), factor))
        finally:
            launcher.close()
    return found.pop(1.0), dict(sorted(found.items()))


def _launch(launcher: WarmLauncher, folder: Path, factor: float) -> Launch:
    record = launched(launcher, folder, "slowed_all_reduce", params={"factor": factor})
    [series] = [m.values for m in record.measurements if m.name == "iterations"]
    return Launch(np.array(series))


def _apart(launches: Launches, dice: random.Random) -> Trial:
    """Two windows that do not overlap, each of consecutive launches, either first."""
    count = min(NEW, len(launches) - STORED)
    gap = dice.randint(0, len(launches) - STORED - count)
    start = dice.randint(0, len(launches) - STORED - count - gap)
    if dice.random() < 0.5:
        later = start + STORED + gap
        return _run(launches[start : start + STORED], launches, later, count)
    later = start + count + gap
    return _run(launches[later : later + STORED], launches, start, count)


def _of_two(before: Launches, after: Launches, dice: random.Random) -> Trial:
    """The run is of another stretch than the baseline."""
    stored = _window(before, STORED, dice)
    count = min(NEW, len(after))
    return _run(stored, after, dice.randint(0, len(after) - count), count)


def _run(stored: Launches, launches: Launches, start: int, count: int) -> Trial:
    """Its launches; for turns all that began with the run's, and from the beginning again at the end."""
    return Trial(
        stored, launches[start : start + count], turns=[*launches[start + SCREENING_LAUNCHES :], *launches[:start]]
    )


def _judge(rule: DecisionRule, trial: Trial, new: Launches, factor: float) -> Answer:
    return rule.judge(trial.stored, new, *((trial.turns, factor) if rule.in_turns else ()))


def _with_slower(trial: Trial) -> Trial:
    slower = {factor: [launch.slowed(factor) for launch in trial.new] for factor in SLOWDOWNS}
    return replace(trial, slower=slower)


def _window(launches: Launches, count: int, dice: random.Random) -> Launches:
    start = dice.randint(0, max(0, len(launches) - count))
    return launches[start : start + count]


def _smallest_found(rule: DecisionRule, trials: Sequence[Trial]) -> str:
    """The smallest slowdown that is found :data:`POWER` of the times, median over the points."""
    smallest = []
    for point in dict.fromkeys(trial.point for trial in trials):
        of_point = [trial for trial in trials if trial.point == point]
        smallest.append(next((factor for factor in STEPS if _power(rule, of_point, factor) >= POWER), math.inf))
    middle = float(np.median(smallest))
    return f"+{middle - 1:.0%}" if middle < math.inf else f"> +{STEPS[-1] - 1:.0%}"


def _power(rule: DecisionRule, trials: Sequence[Trial], factor: float) -> float:
    answers = [rule.judge(t.stored, [launch.slowed(factor) for launch in t.new]) for t in trials]
    return _alarms(answers, rule.least) or 0.0


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
        trials = Trials.recorded(read(options.data), options.trials, options.seed)
        found.append(evaluate(trials))
        print("\n".join(table(found[-1])))
        print("\n".join(["", "our reserve for drift, and less of it", *reserves(trials)]))
        print("\n".join(["", "launches of a baseline", *baselines(trials)]))
        print("\n".join(["", "some iterations slower, of launches of one stretch", *shapes(trials)]))
    if options.live:
        launches, slower = measure(lambda text: print(text, file=sys.stderr))
        found.append(evaluate(Trials.live(launches, slower, options.trials, options.seed)))
        print("\n".join(["", "live", *table(found[-1])]))
    if options.json is not None and found:
        options.json.write_text(json.dumps(as_json(found[0]), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
