"""Process trees: found, ended, throttled, and watched for being stopped.

Processes are identified by process id, group and environment, never by name. A guardian is the parent of one torchrun
or command: it adopts all orphans among its descendants, and no process that it starts outlives it, nor pytest.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import faulthandler
import fcntl
import json
import os
import re
import resource
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil

from pytest_distbench.records.environment import End
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.wire import cleans_up
from pytest_distbench.worker import load
from pytest_distbench.worker.load import LoadWindow, read_proc, usable_cpus

if TYPE_CHECKING:  # a guardian, which starts for each command, has no use for it
    from pytest_distbench.records.plan import LaunchPlan

CYCLE_S = 0.02  # of going on and standing still; shorter than any program's numbers
_LOOK_S = 0.2  # between looks for new processes, which go through all


class Throttle:
    """Slows down all descendants of this process by a share, until it is closed.

    It stops them for ``share`` seconds per second that they run; the next cycle makes up for errors. This process
    itself is not stopped, so that it can end the others.
    """

    def __init__(self, share: float) -> None:
        self.stopped_s = 0.0
        self._share = share
        self._is_over = threading.Event()
        self._below: list[psutil.Process] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        if share:
            self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        if self._share:
            self._thread.join()

    def _run(self) -> None:
        looked_at = float("-inf")
        owed_s, went_on_at = 0.0, time.monotonic()
        while not self._is_over.wait(CYCLE_S / (1 + self._share)):
            if time.monotonic() - looked_at > _LOOK_S:
                self._below, looked_at = psutil.Process().children(recursive=True), time.monotonic()
            self._send("suspend")
            stopped_at = time.monotonic()
            owed_s += self._share * (stopped_at - went_on_at)
            self._is_over.wait(max(0.0, owed_s))
            self._send("resume")
            went_on_at = time.monotonic()
            owed_s -= went_on_at - stopped_at
            self.stopped_s += went_on_at - stopped_at

    def _send(self, what: str) -> None:
        for process in self._below:
            with contextlib.suppress(psutil.Error):
                getattr(process, what)()


STOPPED_S = 5.0  # for standing still; one that gets SIGCONT at once has only been looked at


class Standstill:
    """Watches for stopped processes (SIGSTOP) that the launch depends on."""

    def __init__(self) -> None:
        self.complaint = ""
        self._since: dict[int, float] = {}

    def look(self, pids: Iterable[int]) -> str:
        """A complaint about a process that was stopped for :data:`STOPPED_S`, or ""."""
        now = time.monotonic()
        self._since = {pid: self._since.get(pid, now) for pid in pids if is_stopped(pid)}
        stopped = next((pid for pid, since in self._since.items() if now - since >= STOPPED_S), None)
        if stopped is None:
            return ""
        self.complaint = (
            f"the process {stopped}, which starts the others and waits for them, has been stopped (SIGSTOP) and did "
            f"not go on within {STOPPED_S:g} s, and was ended; who stops one on purpose lets it go on with kill -CONT"
        )
        return self.complaint


def below_guardian(guardian: int) -> list[int]:
    """Process ids of a guardian and of its command, its oldest child; others are orphans."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(guardian)
        children = sorted(process.children(), key=psutil.Process.create_time)
        return [guardian, *(child.pid for child in children[:1])]
    return []


_LOOK_AGAIN_S = 0.002
_CLEANERS_S = 20.0  # for resource trackers and their like: one may still be starting on a busy host
_KILLED_S = 5.0
_PF_EXITING = 0x4  # a process's flag in the kernel (include/linux/sched.h)
_GONE = (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess)


def find_marked(variable: str, value: str | None = None) -> list[psutil.Process]:
    """Live processes, but for this one, that were started with a variable, of any value or one.

    A forked process shows its parent's environment. Reading /proc is ten times faster than psutil; each launch does it.
    """
    text = f"\0{variable}=".encode() + (b"" if value is None else f"{value}\0".encode())
    pids = {int(name) for name in os.listdir("/proc") if name.isdecimal()} - {os.getpid()}
    return _running(pid for pid in pids if text in b"\0" + read_proc(f"/proc/{pid}/environ"))


def family(pids: Iterable[int], *, but: Collection[int] = ()) -> list[psutil.Process]:
    """Live processes of these ids and their descendants, but for some."""
    return _running(pid for pid in load.below(pids, load.all_processes()) if pid not in but)


def _running(pids: Iterable[int]) -> list[psutil.Process]:
    found = []
    for pid in pids:
        with contextlib.suppress(*_GONE):
            if _is_running(process := psutil.Process(pid)):
                found.append(process)
    return found


def kill(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """SIGKILL processes and the groups they lead; returns those alive after :data:`_KILLED_S`.

    Resource trackers and similar cleaners end by themselves once the others have, and are given time to.
    """
    victims = list(processes)
    others = []
    for process in victims:
        with contextlib.suppress(OSError):
            if not cleans_up(Path(f"/proc/{process.pid}/cmdline").read_bytes()):
                others.append(process)
    if len(others) < len(victims):
        for process in others:
            with contextlib.suppress(*_GONE):
                process.kill()
        _wait_until_gone(victims, _CLEANERS_S)
    for process in victims:
        with contextlib.suppress(*_GONE, OSError):
            if os.getpgid(process.pid) == process.pid and process.pid != os.getpgid(0):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
    return _wait_until_gone(victims, _KILLED_S)


def _wait_until_gone(processes: Sequence[psutil.Process], wait_s: float) -> list[psutil.Process]:
    deadline = time.monotonic() + wait_s
    while (alive := [p for p in processes if _is_running(p)]) and time.monotonic() < deadline:
        time.sleep(_LOOK_AGAIN_S)
    return alive


def kill_descendants() -> None:
    """SIGKILL all descendants of this process, repeatedly, as they may start others meanwhile."""
    while descendants := [p for p in psutil.Process().children(recursive=True) if _is_running(p)]:
        kill(descendants)


def catches(pid: int, number: signal.Signals, mask: str = "SigCgt") -> bool:
    """Whether a process has a handler for a signal, or whether another mask of /proc/PID/status has it (proc(5))."""
    for line in read_proc(f"/proc/{pid}/status").decode(errors="replace").splitlines():
        name, _, bits = line.partition(":")
        if name == mask:
            return bool(int(bits, 16) >> (number - 1) & 1)
    return False


def kill_groups(leaders: Iterable[int]) -> None:
    """SIGKILL what is left of the process groups that these ids lead or led."""
    for pid in leaders:
        with contextlib.suppress(OSError):
            if pid != os.getpgid(0):
                os.killpg(pid, signal.SIGKILL)


def group(leader: int) -> list[psutil.Process]:
    """Live processes of a process group, without zombies."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(*_GONE, OSError):
            if os.getpgid(process.pid) == leader and _is_running(process):
                found.append(process)
    return found


def send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    return state(pid)[0] not in ("", "Z", "X")


def is_ending(pid: int) -> bool:
    """Whether a process runs no user code any more, however long the kernel may take to end it.

    A GPU's driver takes seconds to release a context; a rank's connections may close earlier.
    """
    letter, flags = state(pid)
    # A SIGKILL that still waits: the process has yet to come back from a call of the kernel's, and will go then.
    is_killed = any(catches(pid, signal.SIGKILL, mask) for mask in ("SigPnd", "ShdPnd"))
    return letter in ("Z", "X") or bool(flags & _PF_EXITING) or is_killed


def state(pid: int) -> tuple[str, int]:
    """A process's state letter as in ``ps``, such as ``D`` for uninterruptible, and its flags; ("", 0) if gone."""
    fields = read_proc(f"/proc/{pid}/stat").rpartition(b")")[2].split(None, 7)
    return (fields[0].decode(), int(fields[6])) if len(fields) > 6 else ("", 0)


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, after SIGSTOP for example."""
    return state(pid)[0] == "T"


def ending(code: int) -> str:
    """An exit code in words; a negative one is a signal, as in subprocess."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def oom_kills() -> int:
    """Number of processes killed for lack of memory since the host started, in any container, or 0 if unknown."""
    with contextlib.suppress(OSError):
        if found := re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE):
            return int(found[1])
    return 0


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except _GONE:
        return False


_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_HELPER = re.compile(r"multiprocessing\.(resource_tracker|forkserver|spawn)")
"""Helpers of Python's multiprocessing, which end a moment after their owner."""
_LOOK_AT_THREADS_S = 0.5
"""Seconds between looks at a command's threads, which cost milliseconds; a thread's counters end with it."""
_NOT_STARTED = 126  # a shell's exit code for a program that cannot be run


def adopt_orphans() -> None:
    """Make this process the parent of all descendants whose own parent ends (Linux, prctl(2))."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with(parent: int) -> None:
    """Get SIGTERM when the parent ends, or now if it has ended already (Linux, prctl(2))."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)  # it has ended before


def remove_traces(launch: LaunchFiles) -> None:
    """Remove the sockets and the plan, which holds secrets, of a launch and its jobs."""
    for files in (launch, *launch.jobs()):
        for path in (files.control, files.plan):
            path.unlink(missing_ok=True)
        shutil.rmtree(files.sockets, ignore_errors=True)


def start_session(
    words: Sequence[str],
    *,
    variables: Mapping[str, str],
    log: Path,
    folder: str | None = None,
    keeps: Iterable[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a command line in its own session, without stdin, its output appended to a log."""
    with log.open("ab") as out:
        return subprocess.Popen(
            words,
            env=dict(variables),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            pass_fds=[*keeps],
            start_new_session=True,
        )


_PACKAGE = str(Path(__file__).resolve().parents[3])
_START = (
    f"import sys; sys.path.append({_PACKAGE!r}); from pathlib import Path\n"
    "from pytest_distbench.launch.site.processes import guard\n"
    "from pytest_distbench.records.launch_files import LaunchFiles\n"
    "lifeline, looks, delay, directory, *command = sys.argv[1:]\n"
    "guard(int(lifeline), LaunchFiles(Path(directory)), command, looks=looks == 'looks', delay=float(delay))"
)


def start_guarded(
    plan: LaunchPlan, words: Sequence[str], *, variables: Mapping[str, str], log: Path, looks: bool = False
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a command line below a guardian; returns its process and the descriptor that keeps it alive.

    Raises:
        OSError: no process could be started.
    """
    lifeline, theirs = os.pipe()
    given = [str(lifeline), "looks" if looks else "", str(plan.delay if looks else 0.0), plan.directory, *words]
    guardian = [sys.executable, "-P", "-c", _START, *given]
    try:
        process = start_session(guardian, variables=variables, log=log, folder=plan.working_dir, keeps=[lifeline])
    except OSError:
        os.close(theirs)
        raise
    finally:
        os.close(lifeline)
    return process, theirs


_EXEC_S = 2.0  # how long the kernel may read a program from a cold disk


def command_line(process: psutil.Process) -> list[str]:
    """Words that a process was started with, else its name.

    Waits for a new process whose program the kernel is still reading.
    """
    deadline = time.monotonic() + _EXEC_S
    while not (line := process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(_LOOK_AGAIN_S)
    while line and not line[-1]:  # it gave itself a shorter name, as Ray's do
        line.pop()
    return line or [process.name()]


def guard(lifeline: int, launch: LaunchFiles, command: list[str], *, looks: bool, delay: float) -> None:
    """Run the command until it or pytest ends; then end all its descendants, and this process.

    pytest holds the other end of the lifeline. If ``looks``, note the resources that the command used, the processes
    that it left running, and how long other processes kept it from the CPUs. ``delay``: share by which to slow it down.
    """
    adopt_orphans()
    window = LoadWindow(os.getpid(), usable_cpus()) if looks else None
    if window is not None:
        window.begin()
    fcntl.fcntl(lifeline, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    try:
        child = subprocess.Popen(command, start_new_session=True)
    except OSError as error:
        hint = ""  # a program that is there, and may be executed, was found before
        if error.errno == errno.ENOEXEC:
            hint = "; a script says in its first line what runs it: #!/bin/sh"
        elif error.errno == errno.ENOENT and os.path.exists(command[0]):
            hint = "; is what its first line names, after #!, installed?"
        print(f"cannot start {command[0]!r}: {error.strerror}{hint}", file=sys.stderr, flush=True)
        os._exit(_NOT_STARTED)
    throttle = Throttle(delay)
    with selectors.DefaultSelector() as selector:
        selector.register(os.pidfd_open(child.pid), selectors.EVENT_READ)
        selector.register(lifeline, selectors.EVENT_READ)
        while not (ended := {key.fd for key, _ in selector.select(_LOOK_AT_THREADS_S if looks else None)}):
            if window is not None:
                window.look()
    throttle.close()
    if window is not None:
        window.end()
    if lifeline not in ended:
        left = []
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                line = command_line(process)
                if process.status() != psutil.STATUS_ZOMBIE and not _HELPER.search(" ".join(line)):
                    left.append(line)
        if left:
            launch.left.write_text(json.dumps(left))
    kill_descendants()
    code = child.wait()
    if window is not None:
        largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        launch.used.write_bytes(
            msgspec.json.encode(End(load=window.load, peak_memory_bytes=largest, delayed_s=throttle.stopped_s))
        )
    if lifeline in ended:
        remove_traces(launch)
    if code >= 0:
        os._exit(code)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.disable()  # the command's environment may have turned it on
    os.kill(os.getpid(), -code)
