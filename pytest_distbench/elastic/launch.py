"""One launch of an elastic job, or of a pool of them: from plan to record."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_distbench.elastic.measures import measure, measure_pool
from pytest_distbench.elastic.measures.continuity import explain_wrong_resume
from pytest_distbench.elastic.measures.history import History, unplanned
from pytest_distbench.elastic.progress import EXIT_S, explain_slow, explain_standstill
from pytest_distbench.elastic.records import ElasticJob, Job, Pool, error_of, text_of_change
from pytest_distbench.errors import ReadingError, RecordingError
from pytest_distbench.launch.controlled import Controlled, TimelineFollower, controller_problem
from pytest_distbench.launch.fates import is_follower
from pytest_distbench.launch.readers import readings
from pytest_distbench.launch.reduce import largest, merge, of_largest_process, peak_memory, read_reports, recorded
from pytest_distbench.launch.starters import Hosting
from pytest_distbench.launch.supervise import Side
from pytest_distbench.launch.workplace import error_tail
from pytest_distbench.machine import hardware
from pytest_distbench.records.environment import End
from pytest_distbench.records.launch import ErrorReport, LaunchRecord, RankFate, RankReport
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.record import replace
from pytest_distbench.records.wanted import LONG_BASELINE_LAUNCHES
from pytest_distbench.records.wire import Event, EventReader, read_events
from pytest_distbench.run.kinds import LaunchKind


def launch_elastic(plan: LaunchPlan, side: Side) -> LaunchRecord:
    """Run an elastic job once, and return its record, also of a failure. No process of it outlives the call."""
    job = plan.expect(Job).job
    launch = Controlled(plan, side, observes=job.steps is not None, is_ours=True)
    ended = _run(launch, side, str(job), "controller", plan.files.timeline)
    return launch.complete(make_record(launch.plan, ended), ended)


def launch_pool(plan: LaunchPlan, side: Side) -> LaunchRecord:
    """Run a pool of jobs once, and return its record, also of a failure."""
    launch = Controlled(plan, side, observes=False, is_ours=True)
    ended = _run(launch, side, str(plan.expect(Pool).sharing), "pool", plan.files.pool_timeline)
    return launch.complete(make_pool_record(launch.plan, ended), ended)


def _run(launch: Controlled, side: Side, what: str, module: str, timeline: Path) -> End:
    side.on_progress(what)
    shown = TimelineFollower(EventReader(timeline).read, _text_of, side.on_progress)
    return launch.run_module(f"pytest_distbench.elastic.{module}", shown)


_TEXTS = {
    "stable": "{world_size} nodes train, generation {generation}",
    "progress": "{text}",
    "granted": "slot {slot} is for {owner}",
    "asked": "{owner} is to give slot {slot} back",
    "freed": "slot {slot} is free",
    "demanded": "serving wants {slots}",
    "ended": "{job} has ended",
}


def _text_of(event: Event) -> str:
    if event.what == "changed":
        return text_of_change(event)
    return _TEXTS.get(event.what, "").format(slot=event.slot, **event.facts)


_NO_STEP = (
    "the body made no step: the body of an elastic job must loop over rank.training(...).batches(...), or its script "
    "must print lines that steps= matches"
)
_NO_STEP_IN_POOL = "no body made a step: a job of a pool must loop over rank.training(...).batches(...)"


def make_record(plan: LaunchPlan, ended: End) -> LaunchRecord:
    """Make the record of a job that has ended, from the files it left."""
    job = plan.expect(Job).job
    history = History(read_events(plan.files.timeline))
    reason = controller_problem(plan, "elastic job", ended)
    reason += explain_standstill(history.lines) if ended.timed_out else ""
    events, measurements = measure(job, history)
    if not reason:
        reason = _NO_STEP if not events else explain_wrong_resume(history, job)
    reports = read_reports(plan)
    of_files: list[str] = []
    if not reason:
        try:
            if job.steps is not None:
                reports = last_reports(reports, history.lines)
            read, of_files = readings(plan)
            measurements += merge([*recorded(reports.values()), *read])
            if job.steps is not None:  # its workers are processes of its own
                measurements += of_largest_process(ended.peak_memory_bytes)
            else:
                measurements += peak_memory({rank: report.peak_memory_bytes for rank, report in reports.items()})
        except (RecordingError, ReadingError) as error:
            reason = str(error)
    fates: list[RankFate] = []  # a slot takes a rank's place here
    if reason and not history.finished:  # else what was raised before is what its changes brought about
        raised = {line.slot: error_of(line) for line in history.of("raised")}
        fates = [_fate(slot, raised.get(slot), "job", plan.files.log(slot)) for slot in range(job.most)]
    remarks = [*_remarks(job, history, events), *of_files]
    return _record(plan, ended, reason, [*reports.values()], events, measurements, fates, remarks)


def make_pool_record(plan: LaunchPlan, ended: End) -> LaunchRecord:
    """Make the record of a pool that has ended, from the files it left."""
    work = plan.expect(Pool)
    pool = work.sharing
    timelines = {job.name: read_events(plan.files.job(i).timeline) for i, job in enumerate(pool.jobs)}
    reason = controller_problem(plan, "pool", ended)
    events, measurements = measure_pool(pool, read_events(plan.files.pool_timeline), timelines)
    if not reason and not events:
        reason = _NO_STEP_IN_POOL
    reports = {job.name: read_reports(work.part(plan, index)) for index, job in enumerate(pool.jobs)}
    if not reason:
        try:
            for name, by_rank in reports.items():
                memory = peak_memory({rank: report.peak_memory_bytes for rank, report in by_rank.items()})
                measurements += [
                    replace(m, at={"job": name, **m.at}) for m in [*merge(recorded(by_rank.values())), *memory]
                ]
        except RecordingError as error:
            reason = f"job {name}: {error}"
    fates = []  # of the jobs that did not finish, as far as their workers said; a job takes a rank's place here
    for index, lines in enumerate(timelines.values() if reason else ()):
        if not any(line.what == "finished" for line in lines):
            raised = [(line.slot, error_of(line)) for line in lines if line.what == "raised"]
            slot, cause = min(raised, key=lambda each: is_follower(each[1]), default=(0, None))
            fates.append(_fate(index, cause, "pool", plan.files.job(index).log(slot)))
    known = [report for by_rank in reports.values() for report in by_rank.values()]
    remarks = [f"job {name}: {remark}" for name, lines in timelines.items() for remark in torn_remarks(lines)]
    return _record(plan, ended, reason, known, events, measurements, fates, remarks)


def _record(
    plan: LaunchPlan,
    ended: End,
    reason: str,
    reports: Sequence[RankReport],
    events: list[Event],
    measurements: list[Sample],
    fates: list[RankFate],
    remarks: list[str],
) -> LaunchRecord:
    software = [report.software for report in reports if report.software]
    seen = {"python": platform.python_version(), "torch": hardware.installed_version("torch")}  # without torch
    return LaunchRecord(
        index=plan.index,
        outcome="failed" if reason else "passed",
        wall_s=ended.wall_s,
        reason=reason,
        timed_out=ended.timed_out,
        measurements=[] if reason else measurements,
        peak_memory_bytes=largest(reports),
        software=software[0] if software else seen,
        events=events,
        fates=fates,
        remarks=remarks,
        logs=plan.directory,
    )


def last_reports(reports: Mapping[int, RankReport], lines: Sequence[Event]) -> dict[int, RankReport]:
    """Reports of a script's ranks in the generation that finished, by rank.

    Earlier, larger generations leave reports of higher ranks. Raises RecordingError if a report did not pass.
    """
    last = max((line.generation for line in lines if line.what == "finished"), default=0)
    size = max((line.world_size for line in lines if line.what == "joined" and line.generation == last), default=0)
    found = {rank: report for rank, report in reports.items() if rank < size}
    for rank, report in found.items():
        if report.outcome != "passed":
            raise RecordingError(f"rank {rank}: {report.reason}")
    return found


def torn_remarks(lines: Sequence[Event]) -> list[str]:
    """Remarks on incomplete checkpoints that were passed over."""
    torn = sorted({name for line in lines if line.what == "loaded" for name in line.torn})
    return [f"checkpoint {name} was incomplete, and the last complete one was used" for name in torn]


def _fate(number: int, error: ErrorReport | None, what: str, log: Path) -> RankFate:
    return RankFate(
        rank=number,
        outcome="failed",
        phase="body",
        how=f"was ended with the {what}" if error is None else f"raised {error.kind}",
        is_victim=error is None or is_follower(error),
        error=error,
        log_tail=error_tail(log),
    )


def _remarks(job: ElasticJob, history: History, events: Sequence[Event]) -> list[str]:
    lines = history.lines
    remarks = [f"engine {job.engine} in place of {job.in_place_of}"] if job.in_place_of else []
    remarks += torn_remarks(lines)
    left_out = dict.fromkeys(part for line in lines if line.what == "left_out" for part in line.parts)
    if left_out and job.plan and job.checkpoint_every is not None:
        remarks.append(
            f"not passed to rank.training, so no checkpoint saves it and no load of it is checked: "
            f"{'; '.join(left_out)}"
        )
    remarks += [remark for _, remark in unplanned(history)]
    # agents that did not end when their workers had finished, which users see as a job that hangs at its end
    finished = [line for line in lines if line.what == "finished"]
    last = max((line.generation for line in finished), default=None)
    began = min((line.t for line in finished if line.generation == last), default=0.0)
    ended = {line.slot for line in lines if line.what == "agent_ended" and line.t >= began}
    if left := sorted({line.slot for line in finished if line.generation == last} - ended):
        slots = ", ".join(map(str, left))
        remarks.append(f"the agents of slots {slots} had not ended {EXIT_S:g} s after their workers and were ended")
    remarks += [remark for event in events if event.what == "change" and (remark := explain_slow(event, job))]
    if job.most > hardware.cores() and job.cores is None:
        remarks.append(
            f"{job.most} nodes compute on {hardware.cores()} cores: larger world sizes give no speed-up here"
        )
    return remarks


_RUN_LAUNCHES = 5
"""Most launches while a verdict is open. Three stored launches and three new ones allow for 7.4 standard deviations of
noise between launches (at the error rate of one comparison), five for 5.0, eight for 4.0, and ten for 3.7: the first
few each take a fifth off the MDE, the later ones hardly a tenth, and each may take a minute."""

_OPEN_S = 300.0  # a launch of elastic jobs may take a minute: so long its answer is worth more of them


def _kind(run: Callable[[LaunchPlan, Side], LaunchRecord], who: str, **row: Any) -> LaunchKind:
    """Make a kind of launch. Its launcher names the engine, so that numbers of two engines are never compared."""
    return LaunchKind(
        run=run,
        hosting=Hosting(sets_threads=True),
        why_no_ranks=f"{who} come and go",
        why_no_delay="timings of elastic jobs come from their timelines and cannot be delayed",
        open_s=_OPEN_S,
        most_open=_RUN_LAUNCHES,
        most_stored=LONG_BASELINE_LAUNCHES,
        launcher=lambda work, launcher: f"elastic-{work.engine}",
        **row,
    )


JOB = _kind(launch_elastic, "the ranks of an elastic job")
POOL = _kind(
    launch_pool,
    "a pool has many jobs, whose ranks",
    why_alone="a pool of jobs takes the whole machine, so interleaved A/B is not possible",
)
