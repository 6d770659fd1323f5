"""One launch of a command that starts its processes itself, such as ``accelerate launch``: from plan to record.

They are no ranks of ours: what is measured is how long the command takes, and what is read of its output and its files.
Its Pythons note which process groups they join.
"""

from __future__ import annotations

import platform
import shlex

import msgspec

from pytest_distbench.errors import ReadingError, RecordingError
from pytest_distbench.launch.controlled import Controlled, End, read_trouble
from pytest_distbench.launch.diagnosis.membership import check_command, failed_ranks
from pytest_distbench.launch.logs import error_tail
from pytest_distbench.launch.readers import readings
from pytest_distbench.launch.reduce import merge, of_largest_process, recorded
from pytest_distbench.launch.reports import read_reports
from pytest_distbench.launch.side import Side
from pytest_distbench.launch.site import processes
from pytest_distbench.machine import hardware
from pytest_distbench.machine.secrets import mask_arguments
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import WALL_TIME, Observation
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.rank import HUNG, RankFate, RankReport
from pytest_distbench.records.record import replace
from pytest_distbench.records.work import Command

_LONGEST_SHOWN = 60
_STACKS = "(most recent call first):"
"""In what Python's faulthandler writes."""


def launch_command(plan: LaunchPlan, side: Side) -> LaunchRecord:
    """Run a command once. Whatever becomes of it is in the record; nothing of it outlives the call."""
    launch = Controlled(plan, side, observes=True, is_ours=False)
    words = launch.plan.expect(Command).words
    side.on_progress(shlex.join(words)[:_LONGEST_SHOWN])
    ended = launch.run(words)
    return launch.complete(make_record(launch.plan, ended), ended)


def _what_it_left(plan: LaunchPlan) -> list[str]:
    """Command lines of what was still running when the command had ended."""
    if not plan.files.left.exists():
        return []
    lines: list[list[str]] = msgspec.json.decode(plan.files.left.read_bytes())
    return [shlex.join(mask_arguments(line))[:_LONGEST_SHOWN] for line in lines]


def make_record(plan: LaunchPlan, ended: End) -> LaunchRecord:
    """What became of a command that is over, from the files it left."""
    words = plan.expect(Command).words
    log = error_tail(plan.files.log(0))
    trouble = read_trouble(plan.files)
    how = "was ended" if trouble else _tell(ended, log)
    if not how and (failed := failed_ranks(plan)):
        advice = "; a pipe hides exit codes: begin with 'set -o pipefail'" if "|" in " ".join(words) else ""
        how = f"ended with exit code 0, but {failed}{advice}"
    report = RankReport(
        rank=0,
        outcome="failed" if how else "passed",
        phase="body",
        phases={"begin": 0.0, "body": ended.wall_s, "end": ended.wall_s},
        observations=[
            Observation(
                name=WALL_TIME,
                unit="s",
                better="lower",
                reduce="max",
                values=[ended.wall_s],
                is_series=False,
                companions={"cpu_s": [ended.cpu_s]},
            )
        ],
        peak_memory_bytes=ended.peak_memory_bytes,
    )
    measurements = []
    remarks: list[str] = []
    reason = trouble or (f"the command {how}" if how else "")
    if not how:
        try:
            read = readings(replace(plan, world_size=1))
            measurements = merge([*recorded(_noted(plan, report).values()), *read])
            left = _what_it_left(plan)
            remarks = [f"left {', '.join(left)} running, which was ended"] if left else []
            remarks += check_command(plan, gave_numbers=len(measurements) > 1 and not left)
            measurements += of_largest_process(ended.peak_memory_bytes)
        except (RecordingError, ReadingError) as error:
            reason = str(error)
    return LaunchRecord(
        index=plan.index,
        command=shlex.join(mask_arguments(words)),
        outcome="failed" if reason else "passed",
        wall_s=ended.wall_s,
        phases={"body": ended.wall_s},
        reason=reason,
        timed_out=ended.timed_out,
        fates=[
            RankFate(
                rank=0,
                outcome=report.outcome,
                phase="body",
                how=HUNG if ended.timed_out else how or "passed",
                log_tail=log if how else "",
            )
        ],
        measurements=measurements,
        peak_memory_bytes=ended.peak_memory_bytes,
        software={"python": platform.python_version(), "torch": hardware.installed_version("torch")},
        remarks=remarks,
        logs=plan.directory,
    )


def _noted(plan: LaunchPlan, own: RankReport) -> dict[int, RankReport]:
    """What the processes of the command recorded themselves, by rank, and the command's own report among it."""
    reports = read_reports(plan)
    for rank, report in reports.items():
        if report.outcome != "passed":
            raise RecordingError(f"rank {rank}: {report.reason}")
    first = reports.get(0, own)
    observations = [*own.observations, *(first.observations if first is not own else [])]
    return {**reports, 0: replace(own, observations=observations)}


def _tell(ended: End, log: str) -> str:
    """How it ended, in words; empty where it has passed. What a Python says of its stacks is in the log then."""
    if ended.timed_out:
        where = "its Pythons told where they were" if _STACKS in log else "none of its processes told where it was"
        return f"had not ended after {ended.wall_s:.1f} s, and was ended; {where}"
    return "" if ended.code == 0 else processes.ending(ended.code)
