"""How the metrics of a case are judged: tolerances, what can be compared at all, and what of verdicts counts. Pure.

A number that is not measured any more cannot regress, so that its absence is the regression: *lost*. Not lost is what
the user left out: sizes above ``--distbench-max-message``, metrics that ``metrics=`` does not list, tests that were not
selected. Neither is what this launch could not have: sizes that there was no memory for, the time to a goal that was
missed (which is red by its steps), and a clock of a change of membership that did not come about this time.
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

_NEAR = 0.8  # of the letters of two names that are taken for one, so many are the same, in order


TOO_GOOD = 2.0  # times as fast: beyond it a timing has improved, however noisy it is

FEWEST_SIZES, SIZE_DEVIATIONS = 5, 4.0
LEAST_OF_SIZES, OF_FEW_SIZES = 0.05, 0.2
"""An amount of memory may rise by so many standard deviations of its stored launches, by the least at least; of fewer
launches by the other share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How the metrics of a case are judged.

    Attributes:
        tolerance: of the test: the argument of ``run``, else its marker's. A fraction, or one per metric name; None:
            the test does not say.
        metrics: None: all.
        not_evaluated: such as no test names, and other measurements on this host disturbed.
        largest_message: sweeps were told to leave out messages of more bytes; None: none.
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

    def judge_timings(self, metrics: Sequence[Sample], *, has_reference: bool = True) -> bool:
        """Whether one of these is a timing to judge, and not only there because each script has one.

        Without anything to compare with bounds are judged, and where there are none, everything is looked at.
        """
        only_bounds = not has_reference and bool(self.bounds or any(m.bounds for m in metrics))
        timings = [m for m in metrics if m.is_noisy and m.is_judged and self.wants(m.name)]
        return any(m.bounds or self.names(m.name) or not (only_bounds or m.name == WALL_TIME) for m in timings)

    def of(self, launches: Iterable[LaunchRecord]) -> Terms:
        """The same without the time that nobody asked for, where other measurements ran beside one of these."""
        if self.names(WALL_TIME) or not any(launch.host_was_busy for launch in launches):
            return self
        return dataclasses.replace(self, not_evaluated=frozenset({WALL_TIME}))

    def tolerance_of(self, metric: Sample, by_hand: Iterable[float | None]) -> float:
        """The change towards worse that is accepted of a metric, as a fraction: the closest one to the number counts.

        That is, in this order: what is set by hand in the baseline's file, for the metric and then for the case; what
        the test says for the metric; its kind's; what the test says for all; the run's.
        """
        named = self.own_tolerance_of(metric.name, by_hand)
        own = METRIC_KINDS[metric.better].tolerance if named is None else named
        if own is not None:
            return own
        return self.tolerance if isinstance(self.tolerance, int | float) else self.default_tolerance

    def own_tolerance_of(self, name: str, by_hand: Iterable[float | None]) -> float | None:
        """The same, as far as it was set for this metric or case in particular; None: it was not.

        Rules that have a tolerance of their own, those of trainings, give way to nothing less.
        """
        asked = self.tolerance.get(name) if isinstance(self.tolerance, Mapping) else None
        return next((value for value in [*by_hand, asked] if value is not None), None)

    def misspelt(self, names: Collection[str]) -> dict[str, str]:
        """Names in these terms that no metric has, and the metric's name that each nearly is.

        The steps to a goal stand for the time to it, which a miss does not have. Others are left alone: a
        marker may be for several tests, and a metric of some sizes only.
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
    """Metric key -> its measurement in each launch; one that a full launch lacks counts as without value."""
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
    """What nobody set of an amount of memory: by how the stored launches scatter, from :data:`FEWEST_SIZES` on."""
    values = [m.value for m in stored if m.value is not None and m.value > 0]
    if len(values) < FEWEST_SIZES:
        return OF_FEW_SIZES
    return max(LEAST_OF_SIZES, SIZE_DEVIATIONS * statistics.stdev(values) / statistics.fmean(values))


def difference(stored: Sample, current: Sample) -> str:
    """Why a number cannot be compared with a stored one: ``mode was per-iteration, now loop``; empty where it can.

    What only one of them notes is not known to differ: entries from before it was noted stay comparable.
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
    """The same without what the code under test chooses. Where there is none, exact numbers have to be equal."""
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
"""What names one run: it is another one in the next."""

_PLACE_OF_A_RUN = re.compile(r"(?:build|run|job|pipeline|workflow)_?(?:number|num|id|attempt)$|\bpid$", re.IGNORECASE)
"""Names that CI systems and schedulers give to such values."""


_COMPARED = [name for name in Conditions.__struct_fields__ if name != "kind"]
"""A launch of another kind has another launcher."""


def staleness(entry: BaselineEntry, case: Case) -> tuple[ReasonCode, str] | None:
    """Why an entry is not of the workload that was measured, a code and a sentence; None where it is.

    Where all that differs names a run, not a workload, there will never be anything to compare with: that is told as
    what it is.
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
        told = (
            f"{shown}: that changes with every run, so no baseline can ever fit. Write {{launch_dir}} in its place if "
            f"it is a folder, or leave it out; if the workload itself changed, {_RECORD}"
        )
        return "run-specific-workload", told
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
    """Whether two texts are the same but for what is another one in every run. A number alone is a parameter.

    Unless its place says otherwise: ``env.BUILD_NUMBER``.
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
"""A series of fewer values than this share of the baseline's has lost some: loops that end by time vary by less."""

_MESSAGE = re.compile(r"message_bytes=(\d+)")


def message_bytes(key: str) -> int | None:
    found = _MESSAGE.search(key)
    return None if found is None else int(found[1])


def lost_part(baseline: Sequence[Sample], current: Sequence[Sample]) -> str:
    """What is measured no more of a metric that is there: ``recorded by 1 rank, by 2 before``; empty: nothing.

    What a baseline from before these were noted does not hold is not known to be lost.
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
    """Why an improvement may be another number: so many values more in the series; empty: there are not."""
    values, before = min(map(series_length, current)), series_length(baseline[0])
    if before and values > before / FEWEST_VALUES:
        return f"better, but made of {values} values in a launch; the baseline has {before}: is it the same number?"
    return ""


def why_nothing_was_timed(measurement: Sample) -> str:
    """Why a clock that reads 0 says nothing; empty: it reads more, or this is no clock."""
    beside = measurement.companions
    if measurement.unit != "s" or measurement.value != 0 or "cpu_s" not in beside:
        return ""
    if "host_s" not in beside:
        return "the timing is 0 s: nothing was timed"
    host = format_quantity(beside["host_s"], "s")
    return (
        "the timing is 0 s: nothing ran on the device in this loop, or only on streams that the current one does not "
        f"wait for; the hosts of all ranks took {host} per iteration"
    )


def most_of_ranks(launches: Sequence[Sample]) -> list[float]:
    """What the ranks needed at most in any of the launches, the hungriest first; empty where they do not say it."""
    ordered = [sorted(m.values, reverse=True) for m in launches]
    return [max(place) for place in zip(*ordered, strict=True)] if len({len(o) for o in ordered}) == 1 else []


def series_length(measurement: Sample) -> int:
    """Values in the series of a launch; 0 where it is no series, or its loop has a clock and chooses how often it runs.

    A training that reaches its goal earlier has fewer steps, and a sweep fewer iterations on a busy machine.
    """
    is_of_clock = bool(measurement.companions) or measurement.is_phase
    return 0 if measurement.spread is None or is_of_clock else measurement.spread.n


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
    """Which of these keys the run was told to leave out, or had no memory for, and why."""
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
    """What fails the case whatever further launches show, in a few words; empty: nothing does."""
    failed = (f for f in findings if f.is_failure and not f.is_open)
    first = next((f for f in failed if f.kind == "missing" or not f.is_noisy), None)
    return "" if first is None else f"{metric_text(first)} {_WORDS.get(first.code, first.kind)}"


NOT_EVALUATED = "not evaluated: the case already failed"


def closed(finding: Finding, reason: str) -> Finding:
    """An open finding as it stays: not evaluated, as the case fails anyway. What is exact stays as it was seen."""
    if not finding.is_noisy:
        return replace(finding, is_open=False)
    return replace(finding, code="not-evaluated", reason=f"{NOT_EVALUATED} ({reason})", is_open=False)


_WORDS = {"bound": "violates its bound", "not-measured": "is not measured", "nothing-timed": "is not measured"}


def severity(verdict: Finding) -> float:
    """How far the metric moved, as a logarithm, whichever way is worse; infinite where a ratio does not say it."""
    if verdict.ratio is None or verdict.ratio <= 0:
        return math.inf
    return abs(math.log(verdict.ratio))


def worst(verdicts: Iterable[Finding]) -> Finding:
    """The one to name first: what is beyond a bound, or a training's curve, the earliest, else what moved most."""
    return max(verdicts, key=lambda v: (v.code == "bound", METRIC_KINDS[v.better].is_curve, severity(v)))
