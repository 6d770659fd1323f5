"""From all that is known of a launch that is over to its record, and to what of it may be shown and stored.

What ranks recorded of their phases becomes where a loop, or a script, goes: means and sums, so that parts add up, first
of the ranks of each host, then of all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

import msgspec

from pytest_distbench.errors import ReadingError, RecordingError
from pytest_distbench.judging.fingerprint_rule import structure_metrics
from pytest_distbench.launch.diagnosis.fates import Ending, check_ranks, is_hang, tell_fates
from pytest_distbench.launch.diagnosis.reason import merge_outcomes
from pytest_distbench.launch.readers import readings
from pytest_distbench.launch.reduce import (
    common_prints,
    entered_on,
    largest,
    late_s,
    merge,
    merge_fingerprints,
    peak_memory,
    recorded,
    reduce_partials,
    with_load,
)
from pytest_distbench.launch.site import Heard
from pytest_distbench.launch.workplace import tail
from pytest_distbench.machine.secrets import mask_values
from pytest_distbench.records.iteration import Breakdown, PartShare
from pytest_distbench.records.launch import HostReport, LaunchRecord, RankFate, RankReport
from pytest_distbench.records.launch_files import open_left
from pytest_distbench.records.metric import WALL_TIME, Observation, metric_key
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.record import replace

_DIGITS = 9
"""Behind the comma of a second: finer than any clock, and sums over parts are right to a microsecond."""


def loops_on(reports: Sequence[RankReport], *, is_one_clock: bool) -> dict[str, Breakdown]:
    """Where the iterations of each loop go on the ranks of a host, by the key of its metric.

    Only of metrics that all of them recorded; those without parts are no loops, or have phases on other hosts alone. A
    rank that does not enter a phase has spent no time there. A script as a whole, whose key is that of its wall time,
    is one iteration, and a part of it has all the times that it was entered.

    Args:
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


_LARGEST_REPORT = 256 * 2**20


def read_reports(plan: LaunchPlan, ranks: Iterable[int] | None = None) -> dict[int, RankReport]:
    """The reports by rank. A missing or damaged one is left out: its rank died writing it.

    Args:
        ranks: whose; None: of all processes of the launch.
    """
    reports = {}
    for rank in range(plan.processes) if ranks is None else ranks:
        path = plan.files.report(rank)
        try:
            with open_left(path) as file:
                data = file.read(_LARGEST_REPORT)
            report = msgspec.json.decode(data, type=RankReport)
            if report.rank == rank:
                reports[rank] = report
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return reports


def report_host(plan: LaunchPlan, ranks: Iterable[int] | None = None) -> HostReport:
    """What the ranks of this host have left behind, reduced.

    Args:
        ranks: that live here; None: all.
    """
    here = sorted(range(plan.processes) if ranks is None else ranks)
    return reduce_host(read_reports(plan, here), lived_here=len(here), are_all=len(here) == plan.processes)


def reduce_host(found: Mapping[int, RankReport], *, lived_here: int, are_all: bool) -> HostReport:
    """What the ranks of one host recorded, reduced over them where all of them have passed.

    Args:
        are_all: no other host had any, so that one clock has all stamps.
    """
    reports = [found[rank] for rank in sorted(found)]
    ends = [replace(report, observations=[], fingerprints={}) for report in reports]
    if len(reports) < lived_here or any(report.outcome != "passed" for report in reports):
        return HostReport(ranks=ends)
    return HostReport(
        ranks=ends,
        observations=reduce_partials(recorded(reports)),
        fingerprints=common_prints(reports),
        loops=loops_on(reports, is_one_clock=are_all),
        entered=entered_on(reports, ahead_s=time.time() - time.monotonic()),
    )


def make_record(
    plan: LaunchPlan,
    hosts: Sequence[HostReport],
    heard: Heard,
    ending: Ending,
    *,
    remarks: Sequence[str] = (),
) -> LaunchRecord:
    reports = {report.rank: report for host in hosts for report in host.ranks}
    fates = tell_fates(plan, reports, heard, ending)
    outcome, reason = merge_outcomes(fates, after_s=ending.finished_at - ending.up_at)
    trouble = ending.exit.trouble
    if outcome == "failed" and ending.exit.died and all(f.is_victim for f in fates if f.outcome == "failed"):
        reason = f"the launcher failed: {trouble}"
    elif outcome == "failed" and trouble and not any(r.error for r in reports.values()):
        log = tail(plan.files.launcher_log)
        reason = f"{reason}; {trouble}" + (f"; the launcher's log:\n{log}" if log else "")
    if outcome == "failed":
        reason = "\n".join([reason, *ending.exit.stuck.values()])
    else:
        remarks = [*remarks, *ending.exit.stuck.values()]
    measurements = []
    if outcome == "passed":
        try:
            remarks = [*check_ranks(plan, reports), *remarks]
            if plan.work.stands_for is None:
                measurements = merge([*(part for host in hosts for part in host.observations), *readings(plan)])
                if not (plan.only or plan.shares_gpu):  # else it is not of all the launch does, or of the rank alone
                    measurements += peak_memory({rank: report.peak_memory_bytes for rank, report in reports.items()})
        except (RecordingError, ReadingError) as error:
            outcome, reason = "failed", str(error)
    has_passed = outcome == "passed"
    told = list(reports.values())
    stands_for = plan.work.stands_for
    prints = [host.fingerprints for host in hosts]
    fingerprints = merge_fingerprints(prints, world_size=len(told), stands_for=stands_for) if has_passed else {}
    if plan.work.stands_for is not None:  # what it computed, and how fast, is nobody's
        measurements = structure_metrics(fingerprints)
    record = LaunchRecord(
        index=plan.index,
        outcome=outcome,
        wall_s=ending.finished_at - ending.started_at,
        only=plan.only,
        phases=_phases(reports, ending),
        reason=reason,
        timed_out=is_hang(fates),
        fates=[] if has_passed else fates,
        measurements=measurements,
        fingerprints=fingerprints,
        delayed_s=max((r.delayed_s for r in told), default=0.0),
        unseen_collectives=max((r.unseen_collectives for r in told), default=0) if plan.work.stands_for is None else 0,
        late_s=late_s(hosts, doubt_s=ending.clocks.most_doubt_s) if has_passed else {},
        breakdowns=breakdowns(hosts) if has_passed and plan.work.stands_for is None else {},
        peak_memory_bytes=largest(told) if plan.work.stands_for is None else 0,
        hosts=_hosts(plan, ending.clocks.hosts),
        gpus=[reports[rank].gpu for rank in range(plan.processes)] if has_passed and any(r.gpu for r in told) else [],
        software=_software(plan, reports),
        remarks=[*_merge_remarks(heard.remarks()), *filter(None, remarks), *ending.exit.remarks],
        logs=plan.directory,
    )
    return with_load(record, reports[0].load) if 0 in reports and plan.work.stands_for is None else record


def _software(plan: LaunchPlan, reports: Mapping[int, RankReport]) -> dict[str, str]:
    """What rank 0 ran; of a process that stands for a rank what decides about structure, and not about arithmetic."""
    told = reports[0].software if 0 in reports else {}
    return told if plan.work.stands_for is None else {name: told[name] for name in ("python", "torch") if name in told}


def _hosts(plan: LaunchPlan, found: Mapping[int, str]) -> list[str]:
    """Where each rank lived; empty where all lived on one host, or it is not known of all."""
    hosts = [found.get(rank, "") for rank in range(plan.processes)]
    return hosts if all(hosts) and len(set(hosts)) > 1 else []


def _phases(reports: Mapping[int, RankReport], ending: Ending) -> dict[str, float]:
    """Seconds of the slowest rank in each phase, and of starting and ending the group around them."""
    if not reports:
        return {}
    phases = {name: max(r.phases.get(name, 0.0) for r in reports.values()) for name in ("import", "rendezvous", "body")}
    begin = max(r.phases["begin"] for r in reports.values())
    agreed = ending.exit.stamps.get("rendezvous", ending.started_at)
    return {
        "launcher": agreed - ending.started_at,
        "process_start": begin - agreed,
        **phases,
        "exit": ending.finished_at - max(r.phases.get("end", begin) for r in reports.values()),
    }


def _merge_remarks(remarks: Mapping[int, str]) -> list[str]:
    ranks: dict[str, list[str]] = {}
    for rank, text in sorted(remarks.items()):
        ranks.setdefault(text, []).append(str(rank))
    return [f"rank {', '.join(who)}: {text}" for text, who in ranks.items()]


def mask_record(record: LaunchRecord, values: Sequence[str]) -> LaunchRecord:
    """The record as it may be shown and stored. What ranks printed stays in their logs as it was."""
    if not values:
        return record
    return replace(
        record,
        command=mask_values(record.command, values),
        reason=mask_values(record.reason, values),
        remarks=[mask_values(remark, values) for remark in record.remarks],
        fates=[_mask_fate(fate, values) for fate in record.fates],
    )


def _mask_fate(fate: RankFate, values: Sequence[str]) -> RankFate:
    error = fate.error
    if error is not None:
        error = replace(
            error,
            message=mask_values(error.message, values),
            traceback=mask_values(error.traceback, values),
            torch_errors=[mask_values(text, values) for text in error.torch_errors],
        )
    return replace(
        fate,
        how=mask_values(fate.how, values),
        error=error,
        log_tail=mask_values(fate.log_tail, values),
        stacks=mask_values(fate.stacks, values),
    )
