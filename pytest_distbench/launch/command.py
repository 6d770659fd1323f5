"""One launch of a command that starts its processes itself, such as ``accelerate launch``: from start to record.

They are no ranks of ours: what is measured is how long the command takes, and what is read of its output and its files.
Its Pythons note which process groups they join. The whole tree of processes is watched, and ended, as ranks are.
"""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import selectors
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import psutil

from pytest_distbench.errors import LauncherError, ReadingError, RecordingError
from pytest_distbench.launch import processes
from pytest_distbench.launch.contract import SESSION_VARIABLE
from pytest_distbench.launch.logs import LogFollower, error_tail
from pytest_distbench.launch.membership import check_command, failed_ranks
from pytest_distbench.launch.readers import add_readings
from pytest_distbench.launch.reduce import merge, of_largest_process, with_load
from pytest_distbench.launch.reports import read_reports
from pytest_distbench.launch.standstill import LOOK_S, Standstill, below_guardian
from pytest_distbench.launch.workplace import Leftovers, settle, watched_folder
from pytest_distbench.machine import hardware
from pytest_distbench.machine.secrets import mask_arguments
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.load import CommandUse, Load
from pytest_distbench.records.metric import WALL_TIME, Observation
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.rank import HUNG, RankFate, RankReport
from pytest_distbench.records.record import replace
from pytest_distbench.records.torchrun import NOTES_VARIABLE

COMMAND = "command"
"""Where a baseline's key names the launcher."""

_FOLLOW_S = 0.1
_LONGEST_SHOWN = 60
_STACKS_S = 2.0
"""How long Python takes to write its stacks when it is told to abort."""
_STACKS = "(most recent call first):"
"""In what Python's faulthandler writes."""
_PACKAGE = str(Path(__file__).resolve().parents[2])
_GUARDED = (
    f"import sys; sys.path.append({_PACKAGE!r}); from pathlib import Path\n"
    "from pytest_distbench.launch.guardian import main; from pytest_distbench.records.launch_files import LaunchFiles\n"
    "main(int(sys.argv[1]), LaunchFiles(Path(sys.argv[2])), sys.argv[3:], looks=True)"
)
SITE = str(Path(__file__).resolve().parents[1] / "worker" / "site")
"""On the path of every Python of a command; see the module that lies there."""
OBSERVED = {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"}
"""So that what hangs can be asked where it is, and what is killed has said what it said."""


def launch_command(
    plan: LaunchPlan,
    *,
    on_progress: Callable[[str], None] = lambda text: None,
    on_output: Callable[[int, str], None] | None = None,
) -> LaunchRecord:
    """Run a command once. Whatever becomes of it is in the record; nothing of it outlives the call.

    Args:
        plan: with the command; its directory exists and is empty.
        on_progress: gets lines of progress.
        on_output: gets (0, line) of what it prints, while it runs.

    Raises:
        LauncherError: it could not be started at all.
        KeyboardInterrupt: as it came; all that the command started is gone by then.
    """
    session = uuid.uuid4().hex  # its own: all that carries it is ended, and a launcher of ranks goes on
    ours = {SESSION_VARIABLE: session, NOTES_VARIABLE: str(plan.files.plan)}
    plan = settle(replace(plan, variables={**OBSERVED, **plan.variables, **ours}))
    path = os.pathsep.join(filter(None, [SITE, plan.variables.get("PYTHONPATH")]))
    plan = replace(plan, variables={**plan.variables, "PYTHONPATH": path})
    plan.files.plan.touch(mode=0o600)
    plan.files.plan.write_bytes(msgspec.json.encode(replace(plan, variables={}, read={})))
    folder = watched_folder(plan)
    leftovers = Leftovers(folder) if folder is not None else None
    follower = LogFollower(replace(plan, world_size=1), on_output) if on_output is not None else None
    on_progress(shlex.join(plan.body.command)[:60])
    try:
        with running_command(plan, session) as running:
            ended = running.wait(plan.timeout_s, follower)
    finally:
        plan.files.plan.unlink(missing_ok=True)  # it has the command line, with its secrets
    if follower is not None:
        follower.finish()
    remark = leftovers.remark() if leftovers is not None else ""
    return with_load(_make_record(plan, ended, remarks=[remark] if remark else []), ended.load)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """How a command ended.

    Attributes:
        code: exit code, or minus the signal's number.
        timed_out: it was ended because its time was over.
        wall_s: seconds from start to end.
        cpu_s: seconds that it and all it waited for have computed.
        peak_memory_bytes: of the largest of its processes; 0: not known.
        load: who computed meanwhile; None: not known.
    """

    code: int
    timed_out: bool
    wall_s: float
    cpu_s: float
    peak_memory_bytes: int
    load: Load | None


class Follower(Protocol):
    """Looks at what a command writes, while it runs."""

    def poll(self) -> None:
        """Look. Never blocks."""


class _Running:
    """A command below its guardian (see there).

    Args:
        process: the guardian.
        session: cookie of all it started.
        files: that it leaves.
    """

    def __init__(self, process: subprocess.Popen[bytes], session: str, files: LaunchFiles) -> None:
        self._process = process
        self._session = session
        self._files = files
        self._start = time.perf_counter()

    def wait(self, timeout_s: float, follower: Follower | None) -> _Ended:
        """Wait for its end, or make it end when its time is over, or where somebody has stopped who waits for it."""
        deadline = time.monotonic() + timeout_s
        standstill, look_at = Standstill(), 0.0
        patience_s = _FOLLOW_S if follower else LOOK_S
        handle = os.pidfd_open(self._process.pid)
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(handle, selectors.EVENT_READ)
                while not selector.select(max(0.0, min(patience_s, deadline - time.monotonic()))):
                    if follower is not None:
                        follower.poll()
                    if (now := time.monotonic()) >= deadline:
                        return self._stop()
                    if now >= look_at:
                        look_at = now + LOOK_S
                        if told := standstill.look(below_guardian(self._process.pid)):
                            self._files.trouble.write_text(told)
                            self.end()
                            break
        finally:
            os.close(handle)
        return self._reap(time.perf_counter() - self._start, timed_out=False)

    def _stop(self) -> _Ended:
        """Have every Python of it show its stacks, then end it."""
        wall_s = time.perf_counter() - self._start
        pythons = [p for p in self._members() if p.pid != self._process.pid and _is_python(p)]
        for process in pythons:
            with contextlib.suppress(OSError, psutil.Error):
                resource.prlimit(process.pid, resource.RLIMIT_CORE, (0, 0))
                if not processes.catches(process.pid, signal.SIGABRT):
                    continue  # to abort would end it without a word
                process.send_signal(signal.SIGABRT)
        psutil.wait_procs(pythons, timeout=_STACKS_S)
        self.end()
        return self._reap(wall_s, timed_out=True)

    def end(self) -> None:
        """Leave nothing of it behind."""
        processes.kill(self._members())

    def _members(self) -> list[psutil.Process]:
        found = [*processes.find_marked(SESSION_VARIABLE, self._session), *processes.family([self._process.pid])]
        return list({process.pid: process for process in found}.values())

    def _reap(self, wall_s: float, *, timed_out: bool) -> _Ended:
        _, status, usage = os.wait4(self._process.pid, 0)
        code = self._process.returncode = os.waitstatus_to_exitcode(status)
        used = _read_use(self._files)
        return _Ended(
            code=code,
            timed_out=timed_out,
            wall_s=wall_s,
            cpu_s=usage.ru_utime + usage.ru_stime,
            peak_memory_bytes=used.peak_memory_bytes,
            load=used.load,
        )


@contextlib.contextmanager
def running_command(plan: LaunchPlan, session: str) -> Iterator[_Running]:
    """The command of a plan, below its guardian; at the end nothing of it is left."""
    lifeline, theirs = os.pipe()
    try:
        with open(plan.files.log(0), "ab") as log:
            try:
                process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _GUARDED, str(lifeline), plan.directory, *plan.body.command],
                    env=plan.variables,
                    cwd=plan.working_dir,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[lifeline],
                    start_new_session=True,
                )
            except OSError as error:
                raise LauncherError(f"cannot start {plan.body.command[0]!r}: {error}") from error
        os.close(lifeline)
        lifeline = -1
        running = _Running(process, session, plan.files)
        try:
            yield running
        finally:
            running.end()
            if process.returncode is None:
                process.wait()
    finally:
        for descriptor in (lifeline, theirs):
            if descriptor >= 0:
                os.close(descriptor)


def read_trouble(files: LaunchFiles) -> str:
    """Why a launch did not come to its end, where that was noted; else empty."""
    return files.trouble.read_text() if files.trouble.exists() else ""


def _read_use(files: LaunchFiles) -> CommandUse:
    """What the guardian noted; nothing where it was ended before it could."""
    try:
        return msgspec.json.decode(files.used.read_bytes(), type=CommandUse)
    except (OSError, msgspec.DecodeError):
        return CommandUse(load=None, peak_memory_bytes=0)


def _what_it_left(plan: LaunchPlan) -> list[str]:
    """Command lines of what was still running when the command had ended."""
    if not plan.files.left.exists():
        return []
    lines: list[list[str]] = msgspec.json.decode(plan.files.left.read_bytes())
    return [shlex.join(mask_arguments(line))[:_LONGEST_SHOWN] for line in lines]


def _is_python(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "python" in Path(process.exe()).name
    return False


def _make_record(plan: LaunchPlan, ended: _Ended, *, remarks: list[str]) -> LaunchRecord:
    log = error_tail(plan.files.log(0))
    trouble = read_trouble(plan.files)
    how = "was ended" if trouble else _tell(ended, log)
    if not how and (failed := failed_ranks(plan)):
        advice = "; a pipe hides exit codes: begin with 'set -o pipefail'" if "|" in " ".join(plan.body.command) else ""
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
    reason = trouble or (f"the command {how}" if how else "")
    if not how:
        try:
            reports = add_readings(replace(plan, world_size=1), _noted(plan, report))
            measurements = merge(list(reports.values()))
            left = _what_it_left(plan)
            remarks = [*check_command(plan, gave_numbers=len(measurements) > 1 and not left), *remarks]
            if left:
                remarks = [f"left {', '.join(left)} running, which was ended", *remarks]
            measurements += of_largest_process(ended.peak_memory_bytes)
        except (RecordingError, ReadingError) as error:
            reason = str(error)
    return LaunchRecord(
        index=plan.index,
        command=shlex.join(mask_arguments(plan.body.command)),
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
    """What the processes of the command recorded themselves, by rank, and the command's own report among it.

    Raises:
        RecordingError: one of them recorded something that is lost.
    """
    reports = read_reports(plan)
    for rank, report in reports.items():
        if report.outcome != "passed":
            raise RecordingError(f"rank {rank}: {report.reason}")
    first = reports.get(0, own)
    observations = [*own.observations, *(first.observations if first is not own else [])]
    return {**reports, 0: replace(own, observations=observations)}


def _tell(ended: _Ended, log: str) -> str:
    """How it ended, in words; empty where it has passed. What a Python says of its stacks is in the log then."""
    if ended.timed_out:
        where = "its Pythons told where they were" if _STACKS in log else "none of its processes told where it was"
        return f"had not ended after {ended.wall_s:.1f} s, and was ended; {where}"
    return "" if ended.code == 0 else processes.ending(ended.code)
