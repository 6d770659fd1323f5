"""Recorded sweeps, judged size by size and with their neighbours: red runs of unchanged code, slowdowns found.

Part of ``verdict_rules.py --sweeps FILE``; the file is made by ``sweep_recording.py``. A trial takes ten consecutive
launches of a stretch as the baseline and up to ten others as the run, of the same stretch or of another, and judges
the whole sweep as the plugin does, adding launches of what is open. A slowdown multiplies every iteration of the
sizes it is planted in: all of them, those from 1 MiB up, or a single one, another in each trial.

The latency and bandwidth that follow from each launch's sweep are judged too, with a call, or a byte, that costs more.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from pytest_distbench.judging.case import by_metric, judge_launches
from pytest_distbench.judging.entry import make_entry
from pytest_distbench.judging.judgement import Judgement
from pytest_distbench.judging.metric import Circumstances, judge
from pytest_distbench.judging.stored_rule import typical_noise
from pytest_distbench.judging.terms import Terms
from pytest_distbench.records.baseline import BaselineEntry
from pytest_distbench.records.case import Case, CaseKey
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.link_terms import BANDWIDTH, LATENCY, LinkTerms, fit_link_terms
from pytest_distbench.records.metric import UNCERTAINTY, Measurement, Summary
from pytest_distbench.records.record import replace
from pytest_distbench.report.layout import layout

WINDOW = 10
TOLERANCE = 0.1
SLOWDOWNS = (1.05, 1.10, 1.20, 1.50, 2.00)
RANGE_FROM = 2**20

_CASE = Case(test="sweep", key=CaseKey(case_id="ws2", backend="gloo", launcher="warm"), world_size=2, device="cpu")

Launches = Sequence[LaunchRecord]


def read(file: Path) -> dict[str, list[LaunchRecord]]:
    """Stretch of time -> its launches in order.

    Raises:
        SystemExit: fewer launches than a trial needs.
    """
    found: dict[str, dict[int, list[Measurement]]] = {}
    frame = pd.read_parquet(file).sort_values(["launch", "size"])
    columns = (frame[name].tolist() for name in ("stretch", "launch", "size", "p25", "minimum", "p95"))
    for stretch, launch, *numbers in zip(*columns, strict=True):
        found.setdefault(stretch, {}).setdefault(launch, []).append(_measurement(*numbers))
    launches = {
        stretch: [
            LaunchRecord(index=i, outcome="passed", wall_s=1.0, measurements=measurements)
            for i, measurements in of_stretch.items()
        ]
        for stretch, of_stretch in found.items()
    }
    if few := [stretch for stretch, known in launches.items() if len(known) < 2 * WINDOW]:
        raise SystemExit(f"{file}: a trial needs {2 * WINDOW} launches, stretch {few[0]} has {len(launches[few[0]])}")
    return launches


@dataclass(frozen=True)
class Trial:
    """Launches of a baseline and of a run of the same code."""

    stored: Launches
    new: Launches

    def slowed(self, factor: float, is_hit: Callable[[int], bool]) -> Trial:
        """With a slowdown in the run, at some sizes."""
        return Trial(self.stored, [_slowed(launch, factor, is_hit) for launch in self.new])


@dataclass(frozen=True)
class Outcome:
    """What a run says.

    Attributes:
        metrics: names of those it calls regressed.
        red: their sizes.
        launches: it took.
        points: measured in all of them together.
    """

    metrics: frozenset[str]
    red: frozenset[int]
    launches: int
    points: int


def judge_run(trial: Trial, *, is_supported: bool) -> Outcome:
    """Judge as the plugin does, launch after launch while a size is open; each size alone, or neighbours too."""
    entry = make_entry(_CASE, trial.stored, {})
    terms = Terms(default_tolerance=TOLERANCE, max_launches=len(trial.new), cores=2)
    made: list[LaunchRecord] = []
    only: list[str] = []
    while True:
        launch = trial.new[len(made)]
        kept = [m for m in launch.measurements if not only or m.key in only]
        made.append(replace(launch, measurements=kept, only=only))
        found = _judge(terms, made, entry, is_supported=is_supported)
        only = [j.verdict.metric for j in found if j.is_open]
        if not only or len(made) == len(trial.new):
            red = [j.verdict for j in found if j.verdict.kind == "regressed"]
            return Outcome(
                metrics=frozenset(v.name for v in red),
                red=frozenset(int(v.at["message_bytes"]) for v in red if v.at),
                launches=len(made),
                points=sum(len(launch.measurements) for launch in made),
            )


def _judge(terms: Terms, made: Launches, entry: BaselineEntry, *, is_supported: bool) -> list[Judgement]:
    comparisons = len(entry.metrics)
    if is_supported:
        return judge_launches(terms, made, entry, case=_CASE, comparisons=comparisons)
    noise = typical_noise(entry.metrics)
    return [
        judge(
            measurements,
            entry.metrics[key],
            Circumstances(
                tolerance=TOLERANCE,
                comparisons=comparisons,
                max_launches=terms.max_launches,
                noise_floor=noise.get("latency", 0.0),
            ),
        )
        for key, measurements in by_metric(made).items()
    ]


@dataclass(frozen=True)
class Trials:
    """Trials on unchanged code, of one stretch and of two."""

    same: list[Trial]
    other: list[Trial] = field(default_factory=list)

    @classmethod
    def of(cls, data: Mapping[str, Launches], count: int, seed: int) -> Trials:
        """``count`` of each stretch, and of each two."""
        dice = random.Random(seed)
        same = [_apart(launches, dice) for launches in data.values() for _ in range(count)]
        other = [
            Trial(_window(data[a], dice), _window(data[b], dice))
            for a in data
            for b in data
            if a != b
            for _ in range(count)
        ]
        return cls(same, other)


def table(trials: Trials, seed: int) -> list[str]:
    """Both rules, side by side, as lines."""
    sizes = [int(m.at["message_bytes"]) for m in trials.same[0].new[0].measurements]
    dice = random.Random(seed)
    lone = [dice.choice(sizes) for _ in trials.same]
    planted: dict[str, Callable[[int], Callable[[int], bool]]] = {
        "at all sizes": lambda i: lambda size: True,
        "from 1 MiB up": lambda i: lambda size: size >= RANGE_FROM,
        "at a single size": lambda i: lambda size: size == lone[i],
    }
    names = {"each size alone": False, "with neighbours": True}
    alarms = []
    for name, is_supported in names.items():
        same, other = ([judge_run(t, is_supported=is_supported) for t in part] for part in (trials.same, trials.other))
        points = sum(o.points for o in same) / len(same) / len(sizes)
        alarms.append((name, _share(same), _share(other), f"{_mean(o.launches for o in same):.2f}", f"{points:.2f}"))
    lines = layout(("false alarms", "same stretch", "other stretch", "launches", "sweeps' worth"), alarms)
    rows = []
    for where, is_hit in planted.items():
        for name, is_supported in names.items():
            cells = []
            for factor in SLOWDOWNS:
                found = [
                    judge_run(t.slowed(factor, is_hit(i)), is_supported=is_supported) for i, t in enumerate(trials.same)
                ]
                hits = [[size for size in sizes if is_hit(i)(size)] for i in range(len(found))]
                named = _mean(len(o.red & set(hit)) / len(hit) for o, hit in zip(found, hits, strict=True))
                cells.append(f"{_share(found)} {named:>4.0%}")
            rows.append((where, name, *cells))
    return [*lines, "", *layout(("planted", "rule", *(f"+{f - 1:.0%}" for f in SLOWDOWNS)), rows)]


def table_of_terms(trials: Trials) -> list[str]:
    """The same of what follows from the sweeps, as lines."""
    rows = []
    for name, term in (("a call costs more", LATENCY), ("a byte costs more", BANDWIDTH)):
        for judged in (LATENCY, BANDWIDTH):
            alarms = [_share_of_terms(part, judged) for part in (trials.same, trials.other)]
            cells = [_share_of_terms([_costlier(t, factor, term) for t in trials.same], judged) for factor in SLOWDOWNS]
            rows.append((name, judged, *alarms, *cells))
    factors = (f"+{f - 1:.0%}" for f in SLOWDOWNS)
    return layout(("planted", "judged", "same stretch", "other stretch", *factors), rows)


def _share_of_terms(trials: Sequence[Trial], judged: str) -> str:
    """Share of the runs in which a term regressed."""
    fitted = [Trial(list(map(_terms_of, t.stored)), list(map(_terms_of, t.new))) for t in trials]
    red = sum(judged in judge_run(t, is_supported=True).metrics for t in fitted)
    return f"{red / len(trials):.1%}" if trials else "-"


def _terms_of(launch: LaunchRecord) -> LaunchRecord:
    terms = _fitted(launch)
    measurements = [
        Measurement(name=name, unit=unit, better=better, value=value, companions={UNCERTAINTY: error})
        for name, unit, better, value, error in (
            (LATENCY, "s", "lower", terms.latency_s, terms.latency_error),
            (BANDWIDTH, "B/s", "higher", terms.bandwidth, terms.bandwidth_error),
        )
    ]
    return replace(launch, measurements=measurements)


def _fitted(launch: LaunchRecord) -> LinkTerms:
    return fit_link_terms({int(m.at["message_bytes"]): m.value or 0.0 for m in launch.measurements})


def _costlier(trial: Trial, factor: float, term: str) -> Trial:
    """With a run in which a call, or every byte, costs more by so much of what it cost."""
    new = []
    for launch in trial.new:
        terms = _fitted(launch)
        measurements = []
        for m in launch.measurements:
            size, value = int(m.at["message_bytes"]), m.value or 0.0
            added = (factor - 1) * (terms.latency_s if term == LATENCY else size * terms.s_per_byte)
            measurements.append(_measurement(size, value + added, value, value + added))
        new.append(replace(launch, measurements=measurements))
    return Trial(trial.stored, new)


def _share(found: Sequence[Outcome]) -> str:
    """Of the runs that are red."""
    return f"{sum(bool(o.metrics) for o in found) / len(found):.1%}" if found else "-"


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)


def _apart(launches: Launches, dice: random.Random) -> Trial:
    """Two windows that do not overlap, either first."""
    gap = dice.randint(0, len(launches) - 2 * WINDOW)
    start = dice.randint(0, len(launches) - 2 * WINDOW - gap)
    later = start + WINDOW + gap
    windows = launches[start : start + WINDOW], launches[later : later + WINDOW]
    return Trial(*(windows if dice.random() < 0.5 else windows[::-1]))


def _window(launches: Launches, dice: random.Random) -> Launches:
    start = dice.randint(0, len(launches) - WINDOW)
    return launches[start : start + WINDOW]


def _measurement(size: int, p25: float, minimum: float, p95: float) -> Measurement:
    spread = Summary(n=1, minimum=minimum, p25=p25, median=p25, p95=p95, p99=p95, mean=p25, stdev=0.0)
    return Measurement(
        name="latency", unit="s", better="lower", value=p25, at={"message_bytes": int(size)}, summary=spread
    )


def _slowed(launch: LaunchRecord, factor: float, is_hit: Callable[[int], bool]) -> LaunchRecord:
    measurements = []
    for m in launch.measurements:
        size, s = int(m.at["message_bytes"]), m.summary
        assert s is not None
        measurements.append(
            _measurement(size, factor * s.p25, factor * s.minimum, factor * s.p95) if is_hit(size) else m
        )
    return replace(launch, measurements=measurements)
