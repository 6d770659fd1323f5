"""One launch of an elastic job: from plan to record."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pytest_distbench.elastic.measures import measure
from pytest_distbench.elastic.measures.changes import unplanned
from pytest_distbench.elastic.measures.continuity import tell_wrong_resume
from pytest_distbench.elastic.measures.history import History
from pytest_distbench.elastic.progress import EXIT_S, tell_slow, tell_standstill
from pytest_distbench.elastic.records import ElasticJob, Job
from pytest_distbench.elastic.timeline import error_of
from pytest_distbench.errors import ReadingError, RecordingError
from pytest_distbench.launch.controlled import Controlled, TimelineFollower, tell_end
from pytest_distbench.launch.diagnosis.fates import is_follower
from pytest_distbench.launch.outcome import read_reports
from pytest_distbench.launch.readers import readings
from pytest_distbench.launch.reduce import largest, merge, of_largest_process, peak_memory, recorded
from pytest_distbench.launch.starters import Hosting
from pytest_distbench.launch.supervise import Side
from pytest_distbench.launch.workplace import error_tail
from pytest_distbench.machine import hardware
from pytest_distbench.records.environment import End
from pytest_distbench.records.event import Event, EventReader, read_events
from pytest_distbench.records.launch import LaunchRecord, RankFate, RankReport
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.wanted import ELASTIC_BASELINE_LAUNCHES, ELASTIC_RUN_LAUNCHES
from pytest_distbench.run.kinds import LaunchKind


def launch_elastic(plan: LaunchPlan, side: Side) -> LaunchRecord:
    """Run an elastic job once. Whatever becomes of it is in the record; nothing of it outlives the call."""
    job = plan.expect(Job).job
    launch = Controlled(plan, side, observes=job.steps is not None, is_ours=True)
    side.on_progress(str(job))
    shown = TimelineFollower(EventReader(plan.files.timeline).read, _text_of, side.on_progress)
    ended = launch.run_module("pytest_distbench.elastic.controller", shown)
    return launch.complete(make_record(launch.plan, ended), ended)


_NO_STEP = (
    "the body made no step: the body of an elastic job must loop over rank.training(...).batches(...), or its script "
    "must print lines that steps= matches"
)


def _text_of(line: Event) -> str:
    match line.what:
        case "changed":
            return f"{line.kind} of slot {', '.join(map(str, line.slots))}"
        case "stable":
            return f"{line.world_size} nodes train, generation {line.generation}"
        case "progress":
            return str(line.text)
    return ""


def make_record(plan: LaunchPlan, ended: End) -> LaunchRecord:
    """What became of a job that is over, from the files it left."""
    job = plan.expect(Job).job
    history = History(read_events(plan.files.timeline))
    reason = tell_end(plan, "elastic job", ended)
    reason += tell_standstill(history.lines) if ended.timed_out else ""
    events, measurements = measure(job, history)
    if not reason:
        reason = _NO_STEP if not events else tell_wrong_resume(history, job)
    reports = read_reports(plan)
    if not reason:
        try:
            if job.steps is not None:
                reports = last_reports(reports, history.lines)
            measurements += merge([*recorded(reports.values()), *readings(plan)])
            if job.steps is not None:  # its workers are processes of its own
                measurements += of_largest_process(ended.peak_memory_bytes)
            else:
                measurements += peak_memory({rank: report.peak_memory_bytes for rank, report in reports.items()})
        except (RecordingError, ReadingError) as error:
            reason = str(error)
    return LaunchRecord(
        index=plan.index,
        outcome="failed" if reason else "passed",
        wall_s=ended.wall_s,
        reason=reason,
        timed_out=ended.timed_out,
        fates=_fates(plan, job, history.lines) if reason else [],
        measurements=[] if reason else measurements,
        peak_memory_bytes=largest(reports.values()),
        software=software_of(reports.values()),
        events=events,
        remarks=_remarks(job, history, events),
        logs=plan.directory,
    )


def last_reports(reports: Mapping[int, RankReport], lines: Sequence[Event]) -> dict[int, RankReport]:
    """What a script recorded in the generation that finished, by rank.

    Earlier generations have left theirs where the last one had fewer ranks.
    """
    last = max((line.generation for line in lines if line.what == "finished"), default=0)
    size = max((line.world_size for line in lines if line.what == "joined" and line.generation == last), default=0)
    found = {rank: report for rank, report in reports.items() if rank < size}
    for rank, report in found.items():
        if report.outcome != "passed":
            raise RecordingError(f"rank {rank}: {report.reason}")
    return found


def tell_torn(lines: Sequence[Event]) -> list[str]:
    """Of checkpoints that were passed over, because they are not whole."""
    torn = sorted({name for line in lines if line.what == "loaded" for name in line.torn})
    return [f"checkpoint {name} was incomplete, and the last complete one was used" for name in torn]


def software_of(reports: Iterable[RankReport]) -> dict[str, str]:
    """What ran, as a worker that finished says; else as far as it can be told without torch."""
    told = [r.software for r in reports if r.software]
    return told[0] if told else {"python": platform.python_version(), "torch": hardware.installed_version("torch")}


def _fates(plan: LaunchPlan, job: ElasticJob, lines: Sequence[Event]) -> list[RankFate]:
    """How the worker of each slot ended, as far as it said; a slot takes a rank's place here.

    Nothing where the training came to its end: what was raised before is what its changes brought about.
    """
    if any(line.what == "finished" for line in lines):
        return []
    raised = {line.slot: error_of(line) for line in lines if line.what == "raised"}
    return [
        RankFate(
            rank=slot,
            outcome="failed",
            phase="body",
            how=f"raised {raised[slot].kind}" if slot in raised else "was ended with the job",
            is_victim=slot not in raised or is_follower(raised[slot]),
            error=raised.get(slot),
            log_tail=error_tail(plan.files.log(slot)),
        )
        for slot in range(job.most)
    ]


def _remarks(job: ElasticJob, history: History, events: Sequence[Event]) -> list[str]:
    lines = history.lines
    remarks = [f"engine {job.engine} in place of {job.in_place_of}"] if job.in_place_of else []
    remarks += tell_torn(lines)
    left_out = dict.fromkeys(part for line in lines if line.what == "left_out" for part in line.parts)
    if left_out and (job.plan.changes or job.plan.cycle is not None) and job.checkpoint_every is not None:
        remarks.append(
            f"not passed to rank.training, so no checkpoint saves it and no load of it is checked: "
            f"{'; '.join(left_out)}"
        )
    remarks += map(str, unplanned(history))
    remarks += _exit_hang(lines)
    remarks += [told for event in events if event.what == "change" and (told := tell_slow(event, job))]
    if job.most > hardware.cores() and job.cores is None:
        remarks.append(
            f"{job.most} nodes compute on {hardware.cores()} cores: larger world sizes give no speed-up here"
        )
    return remarks


def _exit_hang(lines: Sequence[Event]) -> list[str]:
    """Of agents that did not end when their workers had finished, which users see as a job that hangs at its end."""
    finished = [line for line in lines if line.what == "finished"]
    last = max((line.generation for line in finished), default=None)
    began = min((line.t for line in finished if line.generation == last), default=0.0)
    ended = {line.slot for line in lines if line.what == "agent_ended" and line.t >= began}
    left = sorted({line.slot for line in finished if line.generation == last} - ended)
    slots = ", ".join(map(str, left))
    return (
        [f"the agents of slots {slots} had not ended {EXIT_S:g} s after their workers and were ended"] if left else []
    )


def kind_of_jobs(run: Callable[[LaunchPlan, Side], LaunchRecord], who: str, **row: Any) -> LaunchKind:
    """The row of a kind of launch that runs elastic jobs. Numbers of two engines never meet."""
    return LaunchKind(
        run=run,
        hosting=Hosting(sets_threads=True),
        why_no_ranks=f"{who} come and go",
        why_no_trace=f"{who} come and go",
        why_no_delay="timings of elastic jobs come from their timelines and cannot be delayed",
        open_s=_OPEN_S,
        most_open=ELASTIC_RUN_LAUNCHES,
        most_stored=ELASTIC_BASELINE_LAUNCHES,
        launcher=lambda work, launcher: f"elastic-{work.engine}",
        **row,
    )


_OPEN_S = 300.0
"""A launch of elastic jobs may take a minute: so long its answer is worth more of them."""

JOB = kind_of_jobs(launch_elastic, "the ranks of an elastic job")
