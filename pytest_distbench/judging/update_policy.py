"""What an update writes: which cases it measures anew, which entries it replaces, and what is fit to be a baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pytest_distbench.judging.comparable import version_changes
from pytest_distbench.judging.order_rule import why_nothing_was_timed
from pytest_distbench.records.baseline import BaselineEntry, BaselineMetric
from pytest_distbench.records.case import Case
from pytest_distbench.records.kinds import METRIC_KINDS, VERDICT_KINDS
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import PEAK_MEMORY, Measurement
from pytest_distbench.records.record import replace
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.units import why_impossible

FEWEST_LAUNCHES = 5
"""With fewer, the noise between launches is a guess: the verdicts against such an entry are *inconclusive* or blind."""


_TIME_ALL = "time what runs on the current stream, or record the host's time with rank.record"
_AT_LEAST_TWO = "measure at least two launches; of a derived number give judge a function and of=, or several values"


def only_judges(mode: str | None, entry: BaselineEntry | None) -> bool:
    """Whether an update in this mode leaves a case with this stored entry to the ordinary comparison.

    Mode ``new`` adds to such an entry what it lacks.
    """
    return (mode == "new" and entry is not None) or (mode == "failed" and entry is None)


def what_it_lacks(entry: BaselineEntry, case: Case, launches: Sequence[LaunchRecord]) -> list[LaunchRecord]:
    """The launches with no more than what can be stored of them and is not in the entry; none where it has all.

    What can be compared is there: an exact number of one launch can, one that scatters cannot. An entry of another
    workload, of other software, or of another tool is not added to: its parts would not be of one thing.
    """
    if entry.workload != case.workload or version_changes(entry.software, launches[0].software):
        return []
    there = {key for key, metric in entry.metrics.items() if len(metric.launches) > 1 or not metric.is_noisy}
    rest = [
        replace(
            launch,
            measurements=[m for m in launch.measurements if m.is_judged and m.key not in there],
            fingerprints={key: f for key, f in launch.fingerprints.items() if key not in entry.fingerprints},
        )
        for launch in launches
    ]
    return rest if any(launch.measurements or launch.fingerprints for launch in rest) else []


def is_wanted(mode: str | None, verdicts: Sequence[Verdict], *, is_new: bool) -> bool:
    """Whether an update in this mode rewrites an entry with these verdicts.

    ``all``: always; ``new``: where there is none; ``failed``: where a metric regressed; ``changed``: where any metric
    moved either way, cannot be compared, or has no baseline.
    """
    kinds = {v.kind for v in verdicts if v.is_judged}
    match mode:
        case "all":
            return True
        case "new":
            return is_new
        case "failed":
            return any(VERDICT_KINDS[kind].fails for kind in kinds)
        case _:
            return is_new or any(VERDICT_KINDS[kind].moved or VERDICT_KINDS[kind].wants_update for kind in kinds)


def judged_by_bounds_alone(verdicts: Sequence[Verdict]) -> bool:
    """Whether all that was judged is for information, and has a bound: that is never stored."""
    judged = [v for v in verdicts if v.is_judged]
    return bool(judged) and not any(METRIC_KINDS[v.better].is_judged for v in judged)


def why_not_stored(launches: Sequence[LaunchRecord], verdicts: Sequence[Verdict]) -> str:
    """Why an update refuses what was measured; empty if it does not. Accepting a number does not move its bound."""
    beyond = next((f"{v.metric} is beyond a bound: {v.reason}" for v in verdicts if v.kind == "beyond"), "")
    return beyond or why_not_storable(launches)


def why_not_storable(launches: Sequence[LaunchRecord], *, fewest: int = 2) -> str:
    """What these launches lack to be a baseline; empty if nothing.

    An entry needs at least one judged metric, and a value for each in every launch; a clock that timed nothing has
    none. Of the seeds of a training some may miss the goal: that counts, as a number of steps beyond all others. Of
    fewer launches than ``fewest`` what has noise is refused.
    """
    judged = [m for launch in launches for m in launch.measurements if m.is_judged]
    if all(m.name == PEAK_MEMORY for m in judged):
        return "nothing was measured that can be judged"
    reached = {m.name for m in judged if m.value is not None}
    lacking = [
        m.key for m in judged if m.value is None and not (METRIC_KINDS[m.better].rule == "steps" and m.name in reached)
    ]
    if impossible := impossible_value(launches):
        return impossible
    if idle := next(((m.key, why) for m in judged if (why := why_nothing_was_timed(m))), None):
        return f"{idle[0]}: {idle[1]}; {_TIME_ALL}"
    if not lacking:
        single = next((m.key for m in judged if m.is_noisy and len(launches) < fewest), "")
        return f"{single} has one value, which says nothing about its noise: {_AT_LEAST_TWO}" if single else ""
    missed = f"{lacking.count(lacking[0])} of {len(launches)} launches"
    return f"{lacking[0]} has no value in {missed}: a baseline needs one in each"


def impossible_value(launches: Sequence[LaunchRecord]) -> str:
    """What of these launches nothing can be measured with, and why; empty: there is no such value."""
    return next((f"{m.key}: {why}" for m in _recorded(launches) if (why := _why_impossible(m))), "")


def _recorded(launches: Sequence[LaunchRecord]) -> Iterator[Measurement]:
    """What bodies and readers recorded: neither a clock of ours, nor what is computed of a timeline, may be 0."""
    for launch in launches:
        if not launch.has_jobs:
            yield from (m for m in launch.measurements if m.is_judged and (_is_negative(m) or not _is_own_clock(m)))


def _is_own_clock(measurement: Measurement) -> bool:
    return bool(measurement.companions) or measurement.is_phase


def _is_negative(measurement: Measurement) -> bool:
    return measurement.value is not None and measurement.value < 0


def _why_impossible(measurement: Measurement) -> str:
    return "" if measurement.value is None else why_impossible(measurement.value, measurement.unit)


def few_launches(metrics: Mapping[str, BaselineMetric]) -> dict[str, int]:
    """The metrics that may scatter and have fewer than :data:`FEWEST_LAUNCHES` values, and how many they have."""
    return {
        key: len(metric.launches)
        for key, metric in metrics.items()
        if METRIC_KINDS[metric.better].rule not in ("exact", "memory") and len(metric.launches) < FEWEST_LAUNCHES
    }
