"""How the metrics of a case are judged: tolerances, what can be compared at all, and which verdicts count. Pure.

A number that is not measured any more cannot regress, so its absence is the regression: *missing*. What the user left
out is not missing: sizes above ``--distbench-max-message``, metrics that ``metrics=`` does not list, tests that were
not selected. Neither is what this launch could not have: sizes without enough memory, the time to a goal that was
missed (its steps fail), and a timing of a change of membership that did not happen this time.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from pytest_distbench.judging import golden_curve
from pytest_distbench.judging.words import metric_text
from pytest_distbench.records.case import BaselineEntry, Case, Conditions
from pytest_distbench.records.environment import SETTINGS
from pytest_distbench.records.kinds import METRIC_KINDS, median
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import PEAK_MEMORY, WALL_TIME, AskedBound, Sample, metric_name
from pytest_distbench.records.reasons import ReasonCode
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import Finding
from pytest_distbench.units import counted, format_quantity

_NEAR = 0.8  # share of the letters that two names have in common, in order, if one is taken for the other


TOO_GOOD = 2.0  # times as fast: beyond it a timing has improved, however noisy it is

FEWEST_SIZES, SIZE_DEVIATIONS = 5, 4.0
LEAST_OF_SIZES, OF_FEW_SIZES = 0.05, 0.2
"""Tolerance of an amount of memory: standard deviations of its stored launches, and at least ``LEAST_OF_SIZES``; with
fewer launches than ``FEWEST_SIZES``, ``OF_FEW_SIZES``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How the metrics of a case are judged.

    Attributes:
        tolerance: what the test accepts, by the argument of ``run`` or else its marker: a fraction, or one per metric
            name; None if the test sets none.
        metrics: names of the metrics that the test judges, or None for all.
        not_evaluated: metrics without a verdict, because another run on this host disturbed them.
        largest_message: bytes above which sweeps leave messages out, or None.
    """

    tolerance: float | Mapping[str, float] | None = None
    default_tolerance: float
    metrics: tuple[str, ...] | None = None
    max_launches: int
    cores: int
    bounds: tuple[AskedBound, ...] = ()
    largest_message: int | None = None
    not_evaluated: frozenset[str] = frozenset()

    def wants(self, name: str) -> bool:
        return (self.metrics is None or name in self.metrics) and name not in self.not_evaluated

    def names(self, name: str) -> bool:
        """Whether the test names this metric."""
        named = [*(self.tolerance if isinstance(self.tolerance, Mapping) else ()), *(self.metrics or ())]
        return name in [*named, *(metric_name(metric) for metric, *_ in self.bounds)]

    def judge_timings(self, metrics: Sequence[Sample], *, has_baseline: bool = True) -> bool:
        """Whether one of these is a timing to judge, and not only the wall time that every script has.

        Without anything to compare with, bounds are judged, or every timing if there are no bounds.
        """
        only_bounds = not has_baseline and bool(self.bounds or any(m.bounds for m in metrics))
        timings = [m for m in metrics if m.is_noisy and m.is_judged and self.wants(m.name)]
        return any(m.bounds or self.names(m.name) or not (only_bounds or m.name == WALL_TIME) for m in timings)

    def of(self, launches: Iterable[LaunchRecord]) -> Terms:
        """These terms; if another run disturbed a launch, without the wall time, unless the test names it."""
        if self.names(WALL_TIME) or not any(launch.host_was_busy for launch in launches):
            return self
        return dataclasses.replace(self, not_evaluated=frozenset({WALL_TIME}))

    def tolerance_of(self, metric: Sample, by_hand: Iterable[float | None]) -> float:
        """Accepted change of a metric towards worse, as a fraction: the most specific setting counts.

        In this order: what is set by hand in the baseline file, for the metric and then for the case; what the test
        says for the metric; its kind's; what the test says for all; the run's.
        """
        named = self.own_tolerance_of(metric.name, by_hand)
        own = METRIC_KINDS[metric.better].tolerance if named is None else named
        if own is not None:
            return own
        return self.tolerance if isinstance(self.tolerance, int | float) else self.default_tolerance

    def own_tolerance_of(self, name: str, by_hand: Iterable[float | None]) -> float | None:
        """The tolerance set for this metric or case in particular, or None.

        Only such a tolerance replaces the own tolerances of rules for trainings.
        """
        asked = self.tolerance.get(name) if isinstance(self.tolerance, Mapping) else None
        return next((value for value in [*by_hand, asked] if value is not None), None)

    def misspelt(self, names: Collection[str]) -> dict[str, str]:
        """Names in these terms that no metric has -> the metric's name that each resembles.

        The steps to a goal stand for the time to it, which a missed goal does not have. Other names are accepted: a
        marker may serve several tests, or name a metric of some sizes only.
        """
        asked = [*(self.tolerance if isinstance(self.tolerance, Mapping) else ()), *(self.metrics or ())]
        others = sorted(set(names) - set(asked))
        near = {
            name: difflib.get_close_matches(name, others, n=1, cutoff=_NEAR)
            for name in asked
            if name not in names and name.replace("time_to_", "steps_to_", 1) not in names
        }
        return {name: found[0] for name, found in near.items() if found}


def by_metric(launches: Sequence[LaunchRecord]) -> dict[str, list[Sample]]:
    """Metric key -> its sample in each launch; a full launch that lacks the metric has a sample without value."""
    found: dict[str, list[Sample]] = {}
    for launch in launches:
        for measurement in launch.measurements:
            found.setdefault(measurement.key, []).append(measurement)
    full = sum(not launch.only for launch in launches)
    for key, measurements in found.items():
        found[key] = measurements + [replace(measurements[0], value=None)] * (full - len(measurements))
    return found


def accepted_changes(terms: Terms, launches: Sequence[LaunchRecord], entry: BaselineEntry | None) -> dict[str, float]:
    found = {}
    for key, (metric, *_) in by_metric(launches).items():
        by_hand = entry.by_hand(key) if entry is not None else ()
        found[key] = terms.tolerance_of(metric, by_hand)
        if METRIC_KINDS[metric.better].is_memory and terms.own_tolerance_of(metric.name, by_hand) is None:
            found[key] = tolerance_of_memory(entry.metrics.get(key, ()) if entry is not None else ())
    return found


def tolerance_of_memory(stored: Sequence[Sample]) -> float:
    """Default tolerance of an amount of memory: by the scatter of the stored launches, from :data:`FEWEST_SIZES` on."""
    values = [m.value for m in stored if m.value is not None and m.value > 0]
    if len(values) < FEWEST_SIZES:
        return OF_FEW_SIZES
    return max(LEAST_OF_SIZES, SIZE_DEVIATIONS * statistics.stdev(values) / statistics.fmean(values))


def difference(stored: Sample, current: Sample) -> str:
    """Why a number cannot be compared with a stored one: ``mode was per-iteration, now loop``; or "".

    A fact that only one of them records is not known to differ: older baselines stay comparable.
    """
    if stored.better != current.better:
        return f"the kind was {stored.better!r}, now it is {current.better!r}"
    if stored.unit != current.unit:
        return f"the unit was {stored.unit!r}, now it is {current.unit!r}"
    for name in sorted({*stored.identity} & {*current.identity}):
        if stored.identity[name] != current.identity[name]:
            return f"{name} was {stored.identity[name]}, now {current.identity[name]}"
    return ""


def software_changes(stored: Mapping[str, str], current: Mapping[str, str]) -> list[str]:
    """What differs, by name: ``torch 2.12.0 -> 2.13.0``; ``-`` is a version that one side does not know.

    Ranks record only software that can change a result (worker.process). A choice of the code that one side has not
    recorded is no difference.
    """
    names = {*_versions(stored), *_versions(current), *(stored.keys() & current.keys())}
    found = ((n, stored.get(n, "-"), current.get(n, "-")) for n in sorted(names))
    return [f"{name} {then} -> {now}" for name, then, now in found if then != now]


def version_changes(stored: Mapping[str, str], current: Mapping[str, str]) -> list[str]:
    """Changed versions, without what the code under test chooses. If there is none, exact numbers must be equal."""
    return software_changes(_versions(stored), _versions(current))


def _versions(software: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in software.items() if name not in SETTINGS}


_RECORD = "--distbench-update records it again"
_LONGEST_SHOWN = 60
_MOST_SHOWN = 3

_OF_A_RUN = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"  # a UUID
    r"|\d{4}-\d{2}-\d{2}(?:[T_ -]?\d{2}[:._-]?\d{2}(?:[:._-]?\d{2}(?:\.\d+)?)?)?"  # a date, with a time
    r"|\d{8}[T_-]?\d{4,6}|\d{10,}"  # the same without separators; seconds since 1970
    r"|(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,}"  # a hash
    r"|(?<=tmp)[a-z0-9_]{6,8}(?![a-z0-9_])",  # the end of a temporary name
    re.IGNORECASE,
)
"""Pattern of texts that differ in each run: UUIDs, dates, random temporary names."""

_PLACE_OF_A_RUN = re.compile(r"(?:build|run|job|pipeline|workflow)_?(?:number|num|id|attempt)$|\bpid$", re.IGNORECASE)
"""Pattern of variable names with which CI systems and schedulers number a run, such as ``BUILD_ID``."""


_COMPARED = [name for name in Conditions.__struct_fields__ if name != "kind"]
"""Conditions that must agree. A launch of another kind has another launcher."""


def staleness(entry: BaselineEntry, case: Case) -> tuple[ReasonCode, str] | None:
    """Why a baseline is not of the workload that was measured, a code and a sentence; or None if it is.

    If all that differs names a run, not a workload, no baseline will ever fit: the sentence says so.
    """
    then, now = msgspec.structs.asdict(entry.conditions), msgspec.structs.asdict(case.conditions)
    if others := [f"{name} was {then[name]} and is {now[name]}" for name in _COMPARED if then[name] != now[name]]:
        return ("other-workload", f"the baseline was recorded under other conditions: {'; '.join(others)}; {_RECORD}")
    if entry.workload in ("", case.workload):  # one that another tool has made does not say
        return None
    then, now = dict(_flatten(entry.params)), dict(_flatten(case.params))
    places = [p for p in dict.fromkeys([*now, *then]) if then.get(p) != now.get(p)]
    shown = "; ".join(f"{p} was {_show(then, p)} and is {_show(now, p)}" for p in places[:_MOST_SHOWN])
    if len(places) > _MOST_SHOWN:
        shown += f"; and {len(places) - _MOST_SHOWN} more"
    if places and all(_names_a_run(p, then.get(p), now.get(p)) for p in places):
        sentence = (
            f"{shown}: that changes with every run, so no baseline can ever fit. Write {{launch_dir}} in its place if "
            f"it is a folder, or leave it out; if the workload itself changed, {_RECORD}"
        )
        return "run-specific-workload", sentence
    what = f"; {shown}" if shown else ""
    return "other-workload", f"the case's parameters changed since the baseline; {_RECORD}{what}"


def _flatten(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Each plain value by its place: ``args[2]``, ``env.SEED``."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flatten(inner, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list) and value:
        for i, inner in enumerate(value):
            yield from _flatten(inner, f"{place}[{i}]")
    elif place:  # parameters of which there is none have no place
        yield place, value


def _names_a_run(place: str, then: object, now: object) -> bool:
    """Whether two texts differ only in parts that differ in every run, or their place says so: ``env.BUILD_NUMBER``.

    A number alone is a parameter.
    """
    if _PLACE_OF_A_RUN.search(place) and then is not None and now is not None:
        return True
    if not (isinstance(then, str) and isinstance(now, str)) or then.isdecimal() or now.isdecimal():
        return False
    before, after = _OF_A_RUN.sub("*", then), _OF_A_RUN.sub("*", now)
    return before == after and "*" in before


def _show(values: Mapping[str, Any], place: str) -> str:
    if place not in values:
        return "not set"
    text = repr(values[place])
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]} ..."


FEWEST_VALUES = 0.5
"""A series with fewer values than this share of the baseline's has lost some: loops that end by time vary by less."""

_MESSAGE = re.compile(r"message_bytes=(\d+)")


def message_bytes(key: str) -> int | None:
    found = _MESSAGE.search(key)
    return None if found is None else int(found[1])


def lost_part(baseline: Sequence[Sample], current: Sequence[Sample]) -> str:
    """What this run lacks of a metric: ``recorded by 1 rank, by 2 before``; or "".

    Older baselines lack some of these facts, which then are not missing.
    """
    first, stored = current[0], baseline[0]
    if first.name == PEAK_MEMORY:
        return ""  # nobody asked for it
    if stored.is_judged and not first.is_judged:
        return f"recorded as {first.better!r} now, which is not judged; the baseline has {stored.better!r}"
    if (stored.unit, stored.better) != (first.unit, first.better):
        then, now = (f"{m.better!r} in {m.unit or 'no unit'}" for m in (stored, first))
        return f"recorded as {now} now, as {then} in the baseline: another number under the same name"
    ranks = min((m.ranks for m in current if m.ranks), default=0)
    if 0 < ranks < stored.ranks:
        return f"recorded by {counted(ranks, 'rank')}, by {stored.ranks} in the baseline"
    was, now = (m.reduce or METRIC_KINDS[m.better].reduce for m in (stored, first))
    if stored.ranks and ranks and was != now:
        return f"reduced over the ranks by {now!r}, by {was!r} in the baseline: another number under the same name"
    kind = METRIC_KINDS[stored.better]
    whole = (
        stored.values if kind.keeps_series and golden_curve.disagreement([m.values for m in baseline]) is None else []
    )
    if (steps := min(len(m.values) for m in current)) < len(whole):
        return f"{counted(steps, 'value')} of the series; the baseline has {len(whole)}"
    values, before = min(map(series_length, current)), series_length(stored)
    if values < FEWEST_VALUES * before:
        return f"{counted(values, 'value')} in a launch; the baseline has {before}"
    return ""


def more_than_stored(baseline: Sequence[Sample], current: Sequence[Sample]) -> str:
    """Why an improvement may be another number, as the series has many more values; or ""."""
    values, before = min(map(series_length, current)), series_length(baseline[0])
    if before and values > before / FEWEST_VALUES:
        return f"better, but made of {values} values in a launch; the baseline has {before}: is it the same number?"
    return ""


def why_nothing_was_timed(measurement: Sample) -> str:
    """Why a timing of 0 means nothing, or "" if it is above 0, or is no timing."""
    found = measurement.companions
    if measurement.unit != "s" or measurement.value != 0 or "cpu_s" not in found:
        return ""
    if "host_s" not in found:
        return "the timing is 0 s: nothing was timed"
    host = format_quantity(found["host_s"], "s")
    return (
        "the timing is 0 s: nothing ran on the device in this loop, or only on streams that the current one does not "
        f"wait for; the hosts of all ranks took {host} per iteration"
    )


def most_of_ranks(launches: Sequence[Sample]) -> list[float]:
    """The largest need of each rank over launches, sorted, hungriest first; empty if the number of ranks varies."""
    ordered = [sorted(m.values, reverse=True) for m in launches]
    return [max(place) for place in zip(*ordered, strict=True)] if len({len(o) for o in ordered}) == 1 else []


def series_length(measurement: Sample) -> int:
    """Values in the series of a launch; 0 without a series, or if its loop is timed and chooses how often it runs.

    A training that reaches its goal earlier has fewer steps, and a sweep fewer iterations on a busy machine.
    """
    is_timed = bool(measurement.companions) or measurement.is_phase
    return 0 if measurement.spread is None or is_timed else measurement.spread.n


def missing_finding(
    key: str,
    stored: Sequence[Sample],
    lacks: str,
    *,
    found: Mapping[str, Sequence[Sample]],
    launches: Sequence[LaunchRecord],
    left_out: str = "",
) -> Finding:
    why = left_out
    steps = key.replace("time_to_", "steps_to_", 1)
    if not why and metric_name(key).startswith("time_to_") and any(m.value is None for m in found.get(steps, ())):
        why = "the goal was missed, so there is no time to it"
    elif not why and stored[0].is_noisy and "[" in key and any(launch.events for launch in launches):
        why = "what it times did not happen in this run"
    return Finding(
        metric=key,
        code="unavailable" if why else "not-measured",
        unit=stored[0].unit,
        better=stored[0].better,
        baseline=median(m.value for m in stored),
        baseline_launches=len(stored),
        reason=why or lacks,
    )


def left_out(keys: Sequence[str], found: Mapping[str, Sequence[Sample]], terms: Terms) -> dict[str, str]:
    """Metric keys of the baseline that this run did not measure on purpose, or for lack of memory -> why."""
    reasons: dict[str, str] = {}
    largest = [m.value for found_ones in found.values() for m in found_ones if m.name == "largest_message" and m.value]
    for key in keys:
        size = message_bytes(key)
        if size is None or key in found:
            continue
        if terms.largest_message is not None and size > terms.largest_message:
            reasons[key] = "left out by --distbench-max-message"
        elif largest and size > min(largest):
            reasons[key] = "not enough memory for a message of this size"
    if reasons:  # what is made of all sizes is of other sizes then
        of_all = [key for key in keys if key not in found and message_bytes(key) is None]
        reasons |= dict.fromkeys(of_all, f"not all sizes were measured: {next(iter(reasons.values()))}")
    return reasons


def certain_failure(findings: Sequence[Finding]) -> str:
    """What fails the case whatever further launches show, in a few words, or ""."""
    failed = (f for f in findings if f.is_failure and not f.is_open)
    first = next((f for f in failed if f.kind == "missing" or not f.is_noisy), None)
    return "" if first is None else f"{metric_text(first)} {_WORDS.get(first.code, first.kind)}"


NOT_EVALUATED = "not evaluated: the case already failed"


def closed(finding: Finding, reason: str) -> Finding:
    """An open finding as a final one, if its case fails anyway: *not evaluated*, or for an exact metric its verdict."""
    if not finding.is_noisy:
        return replace(finding, is_open=False)
    return replace(finding, code="not-evaluated", reason=f"{NOT_EVALUATED} ({reason})", is_open=False)


_WORDS = {"bound": "violates its bound", "not-measured": "is not measured", "nothing-timed": "is not measured"}


def severity(verdict: Finding) -> float:
    """How far the metric changed, as a logarithm, whichever way is worse; infinite without a ratio."""
    if verdict.ratio is None or verdict.ratio <= 0:
        return math.inf
    return abs(math.log(verdict.ratio))


def worst(verdicts: Iterable[Finding]) -> Finding:
    """The finding to name first: a violated bound, else the earliest curve of a training, else the largest change."""
    return max(verdicts, key=lambda v: (v.code == "bound", METRIC_KINDS[v.better].is_curve, severity(v)))
