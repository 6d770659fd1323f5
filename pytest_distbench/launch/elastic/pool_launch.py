"""One launch of a pool: from plan to record. Its controller is a process below a guardian, as that of one job is."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable

import msgspec

from pytest_distbench.errors import RecordingError
from pytest_distbench.launch.command import running_command
from pytest_distbench.launch.contract import SESSION_VARIABLE
from pytest_distbench.launch.diagnosis.blame import is_follower
from pytest_distbench.launch.elastic.launch import software_of, tell_end, tell_torn
from pytest_distbench.launch.elastic.pool_measure import measure_pool
from pytest_distbench.launch.guardian import remove_traces
from pytest_distbench.launch.logs import error_tail
from pytest_distbench.launch.reduce import largest, merge, peak_memory, with_load
from pytest_distbench.launch.reports import read_reports
from pytest_distbench.launch.workplace import settle
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.pool import Pool
from pytest_distbench.records.pool_timeline import POOL_LINES, Asked, Demanded, Ended, Freed, Granted, PoolLine
from pytest_distbench.records.rank import RankFate, RankReport
from pytest_distbench.records.record import replace
from pytest_distbench.records.timeline import Finished, Line, LineReader, Raised, read_timeline


def launch_pool(plan: LaunchPlan, *, on_progress: Callable[[str], None] = lambda text: None) -> LaunchRecord:
    """Run a pool once. Whatever becomes of it is in the record; nothing of it outlives the call.

    Args:
        plan: with the pool; its directory exists and is empty.
        on_progress: gets lines of progress.

    Raises:
        LauncherError: the controller could not be started.
        KeyboardInterrupt: as it came; all processes are gone by then.
    """
    pool = plan.pool
    assert pool is not None
    session = uuid.uuid4().hex
    path = os.pathsep.join(p for p in plan.python_path if p)
    plan = settle(replace(plan, variables={**plan.variables, "PYTHONPATH": path, SESSION_VARIABLE: session}))
    plan.files.plan.touch(mode=0o600)
    plan.files.plan.write_bytes(msgspec.json.encode(replace(plan, variables={}, read={})))
    command = [sys.executable, "-m", "pytest_distbench.launch.elastic.pool", str(plan.files.plan)]
    on_progress(str(pool))
    try:
        with running_command(replace(plan, body=replace(plan.body, command=command)), session) as running:
            ended = running.wait(plan.timeout_s, _Follower(plan, on_progress))
    finally:
        remove_traces(plan.files)
    record = make_record(plan, pool, code=ended.code, timed_out=ended.timed_out, wall_s=ended.wall_s)
    return with_load(record, ended.load)


class _Follower:
    """Shows what happens in a pool while it runs."""

    def __init__(self, plan: LaunchPlan, on_progress: Callable[[str], None]) -> None:
        self._reader = LineReader(plan.files.pool_timeline, POOL_LINES)
        self._show = on_progress

    def poll(self) -> None:
        for line in self._reader.read():
            if text := _text_of(line):
                self._show(text)


def _text_of(line: PoolLine) -> str:
    match line:
        case Granted():
            return f"slot {line.slot} is for {line.owner}"
        case Asked():
            return f"{line.owner} is to give slot {line.slot} back"
        case Freed():
            return f"slot {line.slot} is free"
        case Demanded():
            return f"{line.per_s:g} requests/s"
        case Ended():
            return f"{line.job} has ended"
    return ""


def make_record(plan: LaunchPlan, pool: Pool, *, code: int, timed_out: bool, wall_s: float) -> LaunchRecord:
    """What became of a pool that is over, from the files it left.

    Args:
        plan: that ran.
        pool: of the plan.
        code: exit code of its controller.
        timed_out: it was ended because its time was over.
        wall_s: seconds from start to end.
    """
    timelines = {job.name: read_timeline(plan.files.job(i).timeline) for i, job in enumerate(pool.jobs)}
    lines = sorted(LineReader(plan.files.pool_timeline, POOL_LINES).read(), key=lambda line: line.t)
    reason = tell_end(plan, "pool", code=code, timed_out=timed_out, wall_s=wall_s)
    result, measurements = measure_pool(pool, lines, timelines)
    if not reason and result is None:
        reason = "no body took a step: a job of a pool loops over rank.training(...).batches(...)"
    reports = {job.name: _reports(plan, index) for index, job in enumerate(pool.jobs)}
    if not reason:
        try:
            for name, told_by in reports.items():
                memory = peak_memory({rank: report.peak_memory_bytes for rank, report in told_by.items()})
                measurements += [_of_job(name, m) for m in [*merge(list(told_by.values())), *memory]]
        except RecordingError as error:
            reason = f"job {name}: {error}"
    known = [report for told_by in reports.values() for report in told_by.values()]
    return LaunchRecord(
        index=plan.index,
        outcome="failed" if reason else "passed",
        wall_s=wall_s,
        reason=reason,
        timed_out=timed_out,
        fates=_fates(plan, pool, timelines) if reason else [],
        measurements=[] if reason else measurements,
        peak_memory_bytes=largest(known),
        software=software_of(known),
        pool=result,
        remarks=_remarks(timelines),
        logs=plan.directory,
    )


def _reports(plan: LaunchPlan, index: int) -> dict[int, RankReport]:
    assert plan.pool is not None
    files = plan.files.job(index)
    return read_reports(replace(plan, directory=str(files.directory), world_size=plan.pool.jobs[index].job.most))


def _of_job(name: str, measurement: Measurement) -> Measurement:
    return replace(measurement, at={"job": name, **measurement.at})


def _fates(plan: LaunchPlan, pool: Pool, timelines: dict[str, list[Line]]) -> list[RankFate]:
    """How the jobs ended that did not finish, as far as their workers said; a job takes a rank's place here."""
    found = []
    for index, job in enumerate(pool.jobs):
        lines = timelines[job.name]
        if any(isinstance(line, Finished) for line in lines):
            continue
        raised = sorted((line for line in lines if isinstance(line, Raised)), key=lambda line: is_follower(line.error))
        found.append(
            RankFate(
                rank=index,
                outcome="failed",
                phase="body",
                how=f"raised {raised[0].error.kind}" if raised else "was ended with the pool",
                is_victim=not raised or is_follower(raised[0].error),
                error=raised[0].error if raised else None,
                log_tail=error_tail(plan.files.job(index).log(raised[0].slot if raised else 0)),
            )
        )
    return found


def _remarks(timelines: dict[str, list[Line]]) -> list[str]:
    return [f"job {name}: {told}" for name, lines in timelines.items() for told in tell_torn(lines)]
