"""From the phases that each rank recorded to where a loop, or a script, goes: means and sums, so that parts add up.

First of the ranks of each host, then of all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from pytest_distbench.records.breakdown import Breakdown, PartShare
from pytest_distbench.records.host_report import HostReport
from pytest_distbench.records.metric import WALL_TIME, Observation, metric_key
from pytest_distbench.records.rank import RankReport
from pytest_distbench.records.record import replace

_DIGITS = 9
"""Behind the comma of a second: finer than any clock, and sums over parts are right to a microsecond."""


def loops_on(reports: Sequence[RankReport], *, is_one_clock: bool) -> dict[str, Breakdown]:
    """Where the iterations of each loop go on the ranks of a host, by the key of its metric.

    Only of metrics that all of them recorded; those without parts are no loops, or have phases on other hosts alone. A
    rank that does not enter a phase has spent no time there. A script as a whole, whose key is that of its wall time,
    is one iteration, and a part of it has all the times that it was entered.

    Args:
        reports: of the ranks of a host.
        is_one_clock: they are all ranks, whose stamps can be compared, so that it is known who waited for whom.
    """
    ranks = sorted(reports, key=lambda r: r.rank)
    wholes = [{metric_key(o.name, o.at): o.values for o in r.observations if o.place is None} for r in ranks]
    phases: dict[str, dict[tuple[str, ...], dict[int, Observation]]] = {}
    for index, report in enumerate(ranks):
        for observation in report.observations:
            if (place := observation.place) is not None:
                seen = phases.setdefault(place.loop, {}).setdefault(tuple(place.path), {})
                is_of_script = place.loop == WALL_TIME
                seen[index] = _in_one(observation, seen.get(index)) if is_of_script else observation
    return {
        loop: Breakdown(
            times_s=[_mean(whole[loop]) for whole in wholes],
            parts=[
                _part(path, seen, len(ranks), is_one_clock=is_one_clock) for path, seen in phases.get(loop, {}).items()
            ],
        )
        for loop in dict.fromkeys(key for whole in wholes for key in whole)
        if all(whole.get(loop) for whole in wholes)
    }


def breakdowns(hosts: Sequence[HostReport]) -> dict[str, Breakdown]:
    """Where the iterations of each loop with phases go that all ranks of a launch ran, by the key of its metric."""
    found = {}
    for loop in hosts[0].loops if hosts else ():
        loops = [host.loops[loop] for host in hosts if loop in host.loops]
        paths = dict.fromkeys(tuple(part.path) for each in loops for part in each.parts)
        if paths and len(loops) == len(hosts):
            found[loop] = Breakdown(
                times_s=_by_rank(hosts, [each.times_s for each in loops]),
                parts=[_join(hosts, loops, path) for path in paths],
            )
    return found


def _join(hosts: Sequence[HostReport], loops: Sequence[Breakdown], path: tuple[str, ...]) -> PartShare:
    """A part of a loop on all hosts; where no rank of one entered it, none has spent time there."""
    parts = [next((part for part in each.parts if tuple(part.path) == path), None) for each in loops]

    def everywhere(of: Callable[[PartShare], list[float]]) -> list[float]:
        series = [of(part) if part is not None else [] for part in parts]
        if not any(series):
            return []
        return _by_rank(hosts, [one or [0.0] * len(host.ranks) for one, host in zip(series, hosts, strict=True)])

    return PartShare(
        path=list(path),
        times_s=everywhere(lambda part: part.times_s),
        waits_s=everywhere(lambda part: part.waits_s),
        late_s=everywhere(lambda part: part.late_s),
        hosts_s=everywhere(lambda part: part.hosts_s),
        is_apart=any(part is not None and part.is_apart for part in parts),
    )


def _by_rank(hosts: Sequence[HostReport], series: Sequence[Sequence[float]]) -> list[float]:
    """One number for each rank, from those of each host's ranks."""
    found = {
        report.rank: value
        for host, values in zip(hosts, series, strict=True)
        for report, value in zip(host.ranks, values, strict=True)
    }
    return [found[rank] for rank in sorted(found)]


def _part(path: tuple[str, ...], seen: Mapping[int, Observation], ranks: int, *, is_one_clock: bool) -> PartShare:
    places = {rank: o.place for rank, o in seen.items() if o.place is not None}
    came = {rank: place.began_at for rank, place in places.items() if place.began_at}
    hosts = {rank: place.host_s for rank, place in places.items() if place.host_s}

    def by_rank(series: Mapping[int, Sequence[float]]) -> list[float]:
        return [_mean(series.get(rank, ())) for rank in range(ranks)] if series else []

    waits, late = _waits(came, {rank: o.values for rank, o in seen.items()}) if is_one_clock else ({}, {})
    return PartShare(
        path=list(path),
        times_s=by_rank({rank: o.values for rank, o in seen.items()}),
        waits_s=by_rank(waits),
        late_s=by_rank(late),
        hosts_s=by_rank(hosts),
        is_apart=any(place.is_apart for place in places.values()),
    )


def _in_one(observation: Observation, other_points: Observation | None) -> Observation:
    """A phase of a script with the sum of its times, at all points where it was measured, as its only value."""
    values = [*observation.values, *(other_points.values if other_points is not None else ())]
    return replace(observation, values=[sum(values)])


def _waits(
    came: Mapping[int, Sequence[float]], seconds: Mapping[int, Sequence[float]]
) -> tuple[dict[int, list[float]], dict[int, list[float]]]:
    """By rank and iteration: how long it waited for the last rank, and how long after the first it came.

    A rank waits no longer than it is in the phase. An iteration that only some of the ranks enter has no waiting.
    """
    if len(came) < 2:
        return {}, {}
    waits: dict[int, list[float]] = {rank: [] for rank in came}
    late: dict[int, list[float]] = {rank: [] for rank in came}
    for i, moments in enumerate(zip(*came.values(), strict=True)):
        is_whole = all(moments)
        for rank, moment in zip(came, moments, strict=True):
            waits[rank].append(min(max(moments) - moment, seconds[rank][i]) if is_whole else 0.0)
            late[rank].append(moment - min(moments) if is_whole else 0.0)
    return waits, late


def _mean(values: Sequence[float]) -> float:
    return round(fmean(values), _DIGITS) if values else 0.0
