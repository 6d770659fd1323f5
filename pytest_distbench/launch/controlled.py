"""A launch whose processes are no ranks of this package: one process tree below a guardian, from plan to record.

The tree is that of a command that starts its own processes, such as ``accelerate launch``, or of the controller of an
elastic job or pool. It is watched and ended as ranks are. For a command, wall time is measured and metrics are read
from its output and files; its Python processes note which process groups they join.
"""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import selectors
import shlex
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import psutil

from pytest_distbench.errors import LauncherError, ReadingError, RecordingError
from pytest_distbench.launch.fates import check_group
from pytest_distbench.launch.readers import readings
from pytest_distbench.launch.reduce import merge, of_largest_process, of_rank, read_reports, recorded, with_load
from pytest_distbench.launch.site import LOOK_S, processes
from pytest_distbench.launch.site.processes import Standstill
from pytest_distbench.launch.supervise import Side
from pytest_distbench.launch.workplace import Leftovers, LogFollower, error_tail, set_up, watched_folder
from pytest_distbench.machine import hardware
from pytest_distbench.machine.secrets import mask_arguments
from pytest_distbench.records.environment import End
from pytest_distbench.records.launch import HUNG, LaunchRecord, RankFate
from pytest_distbench.records.launch_files import NOTES_VARIABLE, LaunchFiles
from pytest_distbench.records.metric import WALL_TIME, Observation
from pytest_distbench.records.plan import Command, LaunchPlan
from pytest_distbench.records.record import replace
from pytest_distbench.records.wire import SESSION_VARIABLE

_FOLLOW_S = 0.1
_STACKS_S = 2.0  # how long Python may take to write its stacks when asked to abort
_SITE = str(Path(__file__).resolve().parents[1] / "worker" / "site")
"""Folder on the path of every observed Python; its ``sitecustomize`` observes."""
_OBSERVED = {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"}
"""Makes a hanging Python write its stacks, and a killed one all of its output."""


class Controlled:
    """One launch of a plan below a guardian.

    If observed, its Python processes are the user's programs: they note which process groups they join and what they
    raise, and may record numbers.
    """

    def __init__(self, plan: LaunchPlan, side: Side, *, observes: bool, is_ours: bool) -> None:
        self._side = side
        self._session = uuid.uuid4().hex  # its own: all that carries it is ended, and a launcher of ranks goes on
        variables = {**plan.variables, SESSION_VARIABLE: self._session}
        if observes:
            variables = {**_OBSERVED, **variables, NOTES_VARIABLE: str(plan.files.plan)}
        plan = set_up(replace(plan, variables=variables))
        path = plan.python_path if is_ours else [plan.variables.get("PYTHONPATH", "")]
        joined = os.pathsep.join(filter(None, [_SITE if observes else "", *path]))
        self.plan = replace(plan, variables={**plan.variables, "PYTHONPATH": joined})
        self._leftovers = Leftovers(watched_folder(self.plan))

    def run(self, words: Sequence[str], *followers: Follower) -> End:
        """Run a command line to its end, watched by followers; no process outlives the call."""
        plan, show = self.plan, self._side.on_output
        looks = [*followers, *([LogFollower(plan, show)] if show is not None else [])]
        plan.files.plan.touch(mode=0o600)  # it has the command line, with its secrets
        plan.files.plan.write_bytes(msgspec.json.encode(replace(plan, variables={}, read={}, delay=0.0)))
        began = time.perf_counter()
        try:
            try:
                process, lifeline = processes.start_guarded(
                    plan, words, variables=plan.variables, log=plan.files.log(0), looks=True
                )
            except OSError as error:
                raise LauncherError(f"cannot start {words[0]!r}: {error}") from error
            try:
                timed_out = self._wait(process.pid, looks)
                wall_s = time.perf_counter() - began
                if timed_out:
                    self._ask_for_stacks(process.pid)
                    self._end(process.pid)
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
            finally:
                self._end(process.pid)
                if process.returncode is None:
                    process.wait()
                os.close(lifeline)
        finally:
            processes.remove_traces(plan.files)
            for look in looks:
                look.finish()
        try:
            used = msgspec.json.decode(plan.files.used.read_bytes(), type=End)
        except (OSError, msgspec.DecodeError):  # the guardian was ended before it could note anything
            used = End()
        code, cpu_s = process.returncode, usage.ru_utime + usage.ru_stime
        return replace(used, code=code, timed_out=timed_out, wall_s=wall_s, cpu_s=cpu_s)

    def run_module(self, name: str, *followers: Follower) -> End:
        """:meth:`run` a module of this package with the path of the plan as its argument."""
        python = self._side.python or sys.executable
        return self.run([python, "-m", name, str(self.plan.files.plan)], *followers)

    def _wait(self, guardian: int, followers: Sequence[Follower]) -> bool:
        """Wait for the end; return True on time-out. A guardian or command that was stopped (SIGSTOP) is ended."""
        deadline = time.monotonic() + self.plan.timeout_s
        standstill, look_at = Standstill(), float("inf") if self.plan.delay > 0 else 0.0
        patience_s = _FOLLOW_S if followers else LOOK_S
        handle = os.pidfd_open(guardian)
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(handle, selectors.EVENT_READ)
                while not selector.select(max(0.0, min(patience_s, deadline - time.monotonic()))):
                    self._side.on_progress("")
                    for follower in followers:
                        follower.poll()
                    if (now := time.monotonic()) >= deadline:
                        return True
                    if now >= look_at:
                        look_at = now + LOOK_S
                        if complaint := standstill.look(processes.below_guardian(guardian)):
                            self.plan.files.trouble.write_text(complaint)
                            self._end(guardian)
                            break
        finally:
            os.close(handle)
        return False

    def _ask_for_stacks(self, guardian: int) -> None:
        asked = []
        for process in self._members(guardian):
            with contextlib.suppress(OSError, psutil.Error):
                if process.pid == guardian or "python" not in Path(process.exe()).name:
                    continue
                resource.prlimit(process.pid, resource.RLIMIT_CORE, (0, 0))
                if processes.catches(process.pid, signal.SIGABRT):  # else it would end without a word
                    process.send_signal(signal.SIGABRT)
                    asked.append(process)
        psutil.wait_procs(asked, timeout=_STACKS_S)

    def _end(self, guardian: int) -> None:
        processes.kill(self._members(guardian))

    def _members(self, guardian: int) -> list[psutil.Process]:
        found = [*processes.find_marked(SESSION_VARIABLE, self._session), *processes.family([guardian])]
        return list({process.pid: process for process in found}.values())

    def complete(self, record: LaunchRecord, ended: End) -> LaunchRecord:
        """The launch's record with the CPU load during it, and a remark on files that it left behind."""
        remark = self._leftovers.remark()
        record = replace(with_load(record, ended.load), delayed_s=ended.delayed_s)
        return replace(record, remarks=[*record.remarks, remark]) if remark else record


class Follower(Protocol):
    """Reads what the processes below a guardian write."""

    def poll(self) -> None:
        """Read what is new. Never blocks."""

    def finish(self) -> None:
        """Read for the last time."""


@dataclass(frozen=True, slots=True)
class TimelineFollower:
    """Shows a timeline as it grows, without lines for which ``format`` returns ""."""

    read: Callable[[], Iterable[Any]]
    format: Callable[[Any], str]
    show: Callable[[str], None]

    def poll(self) -> None:
        for line in self.read():
            if text := self.format(line):
                self.show(text)

    finish = poll


def read_trouble(files: LaunchFiles) -> str:
    return files.trouble.read_text() if files.trouble.exists() else ""


def controller_problem(plan: LaunchPlan, what: str, ended: End) -> str:
    """Why a controller did not end normally, or ""."""
    if ended.timed_out:
        return f"the {what} had not ended after {ended.wall_s:.1f} s, and was ended"
    if not ended.code:
        return ""
    ending, log = processes.ending(ended.code), error_tail(plan.files.log(0))
    return read_trouble(plan.files) or f"the controller of the {what} {ending}; its log:\n{log}"


_LONGEST_SHOWN = 60
_STACKS = "(most recent call first):"


def launch_command(plan: LaunchPlan, side: Side) -> LaunchRecord:
    """Run a command once and return its record in any case; no process outlives the call."""
    launch = Controlled(plan, side, observes=True, is_ours=False)
    words = launch.plan.expect(Command).words
    side.on_progress(shlex.join(words)[:_LONGEST_SHOWN])
    ended = launch.run(words)
    return launch.complete(make_record(launch.plan, ended), ended)


def make_record(plan: LaunchPlan, ended: End) -> LaunchRecord:
    words = plan.expect(Command).words
    log = error_tail(plan.files.log(0))
    trouble = read_trouble(plan.files)
    how = "" if ended.code == 0 else processes.ending(ended.code)
    if ended.timed_out:  # what a Python says of its stacks is in the log then
        reporting = "its Python processes" if _STACKS in log else "none of its processes"
        stacks = "their stacks" if _STACKS in log else "its stack"
        how = f"had not ended after {ended.wall_s:.1f} s, and was ended; {reporting} reported {stacks}"
    if trouble:
        how = "was ended"
    if not how and (failed := failed_ranks(plan)):
        advice = "; a pipe hides exit codes: begin with 'set -o pipefail'" if "|" in " ".join(words) else ""
        how = f"ended with exit code 0, but {failed}{advice}"
    wall_time = Observation(
        name=WALL_TIME,
        unit="s",
        better="lower",
        reduce="max",
        values=[ended.wall_s],
        is_series=False,
        secondary={"cpu_s": [ended.cpu_s]},
    )
    measurements = []
    remarks: list[str] = []
    reason = trouble or (f"the command {how}" if how else "")
    reports = {} if how else read_reports(plan)  # what its processes recorded themselves
    reason = reason or next((f"rank {r.rank}: {r.reason}" for r in reports.values() if r.outcome != "passed"), "")
    if not reason:
        try:
            read, of_files = readings(replace(plan, world_size=1))
            measurements = merge([of_rank(0, wall_time), *recorded(reports.values()), *read])
            left = []
            if plan.files.left.exists():
                lines = msgspec.json.decode(plan.files.left.read_bytes(), type=list[list[str]])
                left = [shlex.join(mask_arguments(line))[:_LONGEST_SHOWN] for line in lines]
            remarks = [f"left {', '.join(left)} running; they were ended"] if left else []
            remarks += [*of_files, *check_command(plan, gave_numbers=len(measurements) > 1 and not left)]
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
                outcome="failed" if how else "passed",
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


def check_command(plan: LaunchPlan, *, gave_numbers: bool) -> list[str]:
    """:func:`fates.check_group` for the Python processes of a command on this host.

    A command that gave numbers, ended entirely and joined no process group is not checked: it may not be Python.
    """
    sizes = plan.files.joined()
    if not plan.expect(Command).makes_group or (not sizes and gave_numbers):
        return []  # it may not be Python at all: the numbers show that it has done something
    return check_group(plan, max(sizes, default=0), who="process of the command")


_RANK = "rank "


RankNote = tuple[float, str, str, int, str]
"""A line that a Python process of a command notes when it begins, and for each error.

Time (CLOCK_MONOTONIC, seconds), ``rank 1`` or the command line of what starts ranks, ``began`` or ``raised``, process
id, and the error: ``raised ValueError: bad batch (train.py:12)``, or how the started ranks died.
"""


def failed_ranks(plan: LaunchPlan) -> str:
    """How ranks of a command failed, as a clause, or "".

    An elastic agent, or a loop in a shell, restarts ranks: for each rank and starter, only the latest process counts.
    """
    if not plan.files.rank_notes.exists():
        return ""
    lines = plan.files.rank_notes.read_bytes().splitlines()
    notes = sorted(msgspec.json.decode(line, type=RankNote) for line in lines)
    last = {who: pid for _, who, what, pid, _ in notes if what == "began"}
    failed = [(who, error) for _, who, what, pid, error in notes if what == "raised" and last.get(who) == pid]
    by_error: dict[str, list[str]] = {}
    for who, error in failed:
        if who.startswith(_RANK):
            by_error.setdefault(error, []).append(who.removeprefix(_RANK))
    clauses = [f"rank{'s' * (len(who) > 1)} {', '.join(sorted(who))} {error}" for error, who in by_error.items()]
    return "; ".join(clauses or dict.fromkeys(error for _, error in failed))
