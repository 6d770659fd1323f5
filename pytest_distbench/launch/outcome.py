"""From all that is known of a launch that is over to its record, and to what of it may be shown and stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from pytest_distbench.errors import ReadingError, RecordingError
from pytest_distbench.judging.fingerprint_rule import structure_metrics
from pytest_distbench.launch.fates import Ending, is_hang, merge_outcomes, tell_fates
from pytest_distbench.launch.readers import readings
from pytest_distbench.launch.reduce import (
    breakdowns,
    join,
    largest,
    late_s,
    merge,
    of_launch,
    of_rank,
    peak_memory,
    with_load,
)
from pytest_distbench.launch.site import Heard
from pytest_distbench.launch.workplace import tail
from pytest_distbench.machine.secrets import mask_values
from pytest_distbench.records.launch import HostReport, LaunchRecord, RankFate, RankReport
from pytest_distbench.records.launch_files import open_left
from pytest_distbench.records.plan import LaunchPlan, Ranks
from pytest_distbench.records.record import replace

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
    each = [
        HostReport(
            ranks=[replace(report, observations=[], fingerprints={}, entered={})],
            observations=[of_rank(rank, observation) for observation in report.observations],
            fingerprints=report.fingerprints,
            entered={key: (stamps, {rank: (0, 0.0)}) for key, stamps in report.entered.items() if stamps},
        )
        for rank, report in sorted(found.items())
    ]
    if len(each) < lived_here or any(report.outcome != "passed" for report in found.values()):
        return HostReport(ranks=[report for one in each for report in one.ranks])
    return join(each, is_one_clock=are_all)


def make_record(
    plan: LaunchPlan,
    hosts: Sequence[HostReport],
    heard: Heard,
    ending: Ending,
    *,
    remarks: Sequence[str] = (),
) -> LaunchRecord:
    whole = join(hosts)
    reports = {report.rank: report for report in whole.ranks}
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
    stands_for_a_rank = plan.work.stands_for is not None
    if outcome == "passed":
        try:
            remarks = [*check_ranks(plan, reports), *remarks]
            if not stands_for_a_rank:
                measurements = merge([*whole.observations, *readings(plan)])
                if not (plan.only or plan.shares_gpu):  # else it is not of all the launch does, or of the rank alone
                    measurements += peak_memory({rank: report.peak_memory_bytes for rank, report in reports.items()})
        except (RecordingError, ReadingError) as error:
            outcome, reason = "failed", str(error)
    has_passed = outcome == "passed"
    told = list(reports.values())
    size = None if stands_for_a_rank else len(told)
    fingerprints = {key: of_launch(one, size) for key, one in whole.fingerprints.items()} if has_passed else {}
    homes = [ending.clocks.hosts.get(rank, "") for rank in range(plan.processes)]
    said: dict[str, list[str]] = {}
    for rank, text in sorted(heard.remarks().items()):
        said.setdefault(text, []).append(str(rank))
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
        late_s=late_s(whole, doubt_s=ending.clocks.most_doubt_s) if has_passed else {},
        hosts=homes if all(homes) and len(set(homes)) > 1 else [],
        gpus=[reports[rank].gpu for rank in range(plan.processes)] if has_passed and any(r.gpu for r in told) else [],
        software=reports[0].software if 0 in reports else {},
        remarks=[
            *(f"rank {', '.join(who)}: {text}" for text, who in said.items()),
            *filter(None, remarks),
            *ending.exit.remarks,
        ],
        logs=plan.directory,
    )
    if stands_for_a_rank:  # what it computed, and how fast, is nobody's
        software = {name: record.software[name] for name in ("python", "torch") if name in record.software}
        return replace(record, measurements=structure_metrics(fingerprints), software=software)
    record = replace(
        record,
        unseen_collectives=max((r.unseen_collectives for r in told), default=0),
        breakdowns=breakdowns(whole) if has_passed else {},
        peak_memory_bytes=largest(told),
    )
    return with_load(record, reports[0].load) if 0 in reports else record


def check_ranks(plan: LaunchPlan, reports: Mapping[int, RankReport]) -> list[str]:
    """What is to be said of a launch of ranks of ours, where only some of those that run a script met."""
    body = plan.expect(Ranks).body
    if not (body.is_script and body.makes_group):
        return []
    return check_group(plan, max(report.group_size for report in reports.values()), who="rank")


def check_group(plan: LaunchPlan, largest: int, *, who: str) -> list[str]:
    if plan.world_size == 1:
        return []
    if largest < 2:
        last = tail(plan.files.log(0), lines=5)
        shown = f"; the output of rank 0 ends with:\n{last}" if last else "; rank 0 printed nothing"
        raise RecordingError(
            f"no {who} joined a process group of {plan.world_size}: it ended without one"
            + ", or made one of its own" * (largest == 1)
            + ". If its processes communicate without torch.distributed, pass makes_group=False"
            + shown
        )
    return [f"the largest process group had {largest} of {plan.world_size} ranks"] * (largest < plan.world_size)


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


def mask_record(record: LaunchRecord, values: Sequence[str]) -> LaunchRecord:
    """The record as it may be shown and stored. What ranks printed stays in their logs as it was."""
    if not values:
        return record
    return replace(
        record,
        command=mask_values(record.command, values),
        reason=mask_values(record.reason, values),
        remarks=[mask_values(remark, values) for remark in record.remarks],
        fates=[msgspec.convert(_masked(msgspec.to_builtins(fate), values), RankFate) for fate in record.fates],
    )


def _masked(document: Any, values: Sequence[str]) -> Any:
    """With masks in all of its texts."""
    match document:
        case str():
            return mask_values(document, values)
        case dict():
            return {key: _masked(value, values) for key, value in document.items()}
        case list():
            return [_masked(value, values) for value in document]
    return document
