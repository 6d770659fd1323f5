"""One launch of a pool of elastic jobs: from plan to record."""

from __future__ import annotations

from pytest_distbench.elastic.launch import kind_of_jobs, software_of, tell_torn
from pytest_distbench.elastic.measures.pool import measure_pool
from pytest_distbench.elastic.records import Pool, Sharing
from pytest_distbench.elastic.timeline import error_of
from pytest_distbench.errors import RecordingError
from pytest_distbench.launch.controlled import Controlled, TimelineFollower, tell_end
from pytest_distbench.launch.diagnosis.fates import is_follower
from pytest_distbench.launch.outcome import read_reports
from pytest_distbench.launch.reduce import largest, merge, peak_memory, recorded
from pytest_distbench.launch.supervise import Side
from pytest_distbench.launch.workplace import error_tail
from pytest_distbench.records.environment import End
from pytest_distbench.records.event import Event, EventReader, read_events
from pytest_distbench.records.launch import LaunchRecord, RankFate
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.record import replace


def launch_pool(plan: LaunchPlan, side: Side) -> LaunchRecord:
    launch = Controlled(plan, side, observes=False, is_ours=True)
    side.on_progress(str(plan.expect(Pool).sharing))
    shown = TimelineFollower(EventReader(plan.files.pool_timeline).read, _pool_text, side.on_progress)
    ended = launch.run_module("pytest_distbench.elastic.pool", shown)
    return launch.complete(make_pool_record(launch.plan, ended), ended)


def _pool_text(line: Event) -> str:
    match line.what:
        case "granted":
            return f"slot {line.slot} is for {line.owner}"
        case "asked":
            return f"{line.owner} is to give slot {line.slot} back"
        case "freed":
            return f"slot {line.slot} is free"
        case "demanded":
            return f"serving wants {line.slots}"
        case "ended":
            return f"{line.job} has ended"
    return ""


def make_pool_record(plan: LaunchPlan, ended: End) -> LaunchRecord:
    work = plan.expect(Pool)
    pool = work.sharing
    timelines = {job.name: read_events(plan.files.job(i).timeline) for i, job in enumerate(pool.jobs)}
    lines = sorted(EventReader(plan.files.pool_timeline).read(), key=lambda line: line.t)
    reason = tell_end(plan, "pool", ended)
    events, measurements = measure_pool(pool, lines, timelines)
    if not reason and not events:
        reason = "no body made a step: a job of a pool must loop over rank.training(...).batches(...)"
    reports = {job.name: read_reports(work.part(plan, index)) for index, job in enumerate(pool.jobs)}
    if not reason:
        try:
            for name, told_by in reports.items():
                memory = peak_memory({rank: report.peak_memory_bytes for rank, report in told_by.items()})
                measurements += [
                    replace(m, at={"job": name, **m.at}) for m in [*merge(recorded(told_by.values())), *memory]
                ]
        except RecordingError as error:
            reason = f"job {name}: {error}"
    known = [report for told_by in reports.values() for report in told_by.values()]
    return LaunchRecord(
        index=plan.index,
        outcome="failed" if reason else "passed",
        wall_s=ended.wall_s,
        reason=reason,
        timed_out=ended.timed_out,
        fates=_pool_fates(plan, pool, timelines) if reason else [],
        measurements=[] if reason else measurements,
        peak_memory_bytes=largest(known),
        software=software_of(known),
        events=events,
        remarks=[f"job {name}: {told}" for name, lines in timelines.items() for told in tell_torn(lines)],
        logs=plan.directory,
    )


def _pool_fates(plan: LaunchPlan, pool: Sharing, timelines: dict[str, list[Event]]) -> list[RankFate]:
    """How the jobs ended that did not finish, as far as their workers said; a job takes a rank's place here."""
    found = []
    for index, job in enumerate(pool.jobs):
        lines = timelines[job.name]
        if any(line.what == "finished" for line in lines):
            continue
        raised = sorted((line for line in lines if line.what == "raised"), key=lambda line: is_follower(error_of(line)))
        found.append(
            RankFate(
                rank=index,
                outcome="failed",
                phase="body",
                how=f"raised {error_of(raised[0]).kind}" if raised else "was ended with the pool",
                is_victim=not raised or is_follower(error_of(raised[0])),
                error=error_of(raised[0]) if raised else None,
                log_tail=error_tail(plan.files.job(index).log(raised[0].slot if raised else 0)),
            )
        )
    return found


POOL = kind_of_jobs(
    launch_pool,
    "a pool has many jobs, whose ranks",
    in_turns=None,
    why_alone="a pool of jobs takes the whole machine, so interleaved A/B is not possible",
)
