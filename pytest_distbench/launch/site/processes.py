"""The processes that something has started, as a tree: they are found, ended, throttled, watched for standing still.

They are known by process id, by group, by what their environment says. Never by name.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

from pytest_distbench.records.wire import cleans_up

CYCLE_S = 0.02
"""Of going on and standing still. No number of a program is to end within one."""
_LOOK_S = 0.2
"""How often it is looked for new processes, which goes through all that there are."""


class Throttle:
    """Makes whatever runs below this process take longer by a share, until it is closed.

    For each second that it goes on it stands still for so many: what a cycle misses the next one makes up for. This
    process itself goes on, so that it can end the others at any time.
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


STOPPED_S = 5.0
"""How long a process may stand still. One that is sent SIGCONT at once has only been looked at."""


class Standstill:
    """Looks at processes that somebody waits for. What it has said is kept in ``told``."""

    def __init__(self) -> None:
        self.told = ""
        self._since: dict[int, float] = {}

    def look(self, pids: Iterable[int]) -> str:
        """What there is to say of one that has stood still for too long; empty: nothing."""
        now = time.monotonic()
        self._since = {pid: self._since.get(pid, now) for pid in pids if is_stopped(pid)}
        stopped = next((pid for pid, since in self._since.items() if now - since >= STOPPED_S), None)
        if stopped is None:
            return ""
        self.told = (
            f"the process {stopped}, which starts the others and waits for them, has been stopped (SIGSTOP) and did "
            f"not go on within {STOPPED_S:g} s, and was ended; who stops one on purpose lets it go on with kill -CONT"
        )
        return self.told


def below_guardian(guardian: int) -> list[int]:
    """Process ids of a guardian and of what it runs, which is the oldest of its children: the others are orphans."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(guardian)
        children = sorted(process.children(), key=psutil.Process.create_time)
        return [guardian, *(child.pid for child in children[:1])]
    return []


_LOOK_AGAIN_S = 0.002
_CLEANERS_S = 20.0
"""How long resource trackers and their like may clean up: done soon, but one may still be starting on a busy host."""
_PF_EXITING = 0x4
"""Of a process's flags in the kernel (include/linux/sched.h): it is in its exit."""
_GONE = (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess)


def find_marked(variable: str, value: str) -> list[psutil.Process]:
    """Live processes, other than this one, that were started with ``variable=value`` in their environment.

    A process that was forked and not executed anew shows the environment of the one it was forked from.
    """
    return [process for process in _find_by_environment(f"{variable}={value}\0") if process.pid != os.getpid()]


def find_carrying(variable: str) -> list[psutil.Process]:
    """Live processes that were started with ``variable`` in their environment, whatever its value."""
    return _find_by_environment(f"{variable}=")


def family(pids: Iterable[int]) -> list[psutil.Process]:
    found: dict[int, psutil.Process] = {}
    for pid in pids:
        with contextlib.suppress(*_GONE):
            process = psutil.Process(pid)
            for member in [process, *process.children(recursive=True)]:
                found[member.pid] = member
    return [process for process in found.values() if _is_running(process)]


def kill(processes: Iterable[psutil.Process], *, wait_s: float = 5.0) -> list[psutil.Process]:
    """SIGKILL processes and the groups they lead; returns those still alive after ``wait_s``.

    Resource trackers and their like are let end by themselves, which they do when the others have: they clean up.
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
    return _wait_until_gone(victims, wait_s)


def _wait_until_gone(processes: Sequence[psutil.Process], wait_s: float) -> list[psutil.Process]:
    """The processes that are alive when all others are gone, or the time is over."""
    deadline = time.monotonic() + wait_s
    while (alive := [p for p in processes if _is_running(p)]) and time.monotonic() < deadline:
        time.sleep(_LOOK_AGAIN_S)
    return alive


def kill_descendants() -> None:
    """SIGKILL all below this process, again and again until a look finds none: one may start others meanwhile."""
    while descendants := [p for p in psutil.Process().children(recursive=True) if _is_running(p)]:
        kill(descendants)


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal (/proc/PID/status, proc(5))."""
    return _has(pid, "SigCgt", number)


def _has(pid: int, mask: str, number: signal.Signals) -> bool:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            name, _, bits = line.partition(":")
            if name == mask:
                return bool(int(bits, 16) >> (number - 1) & 1)
    return False


def kill_groups(leaders: Iterable[int]) -> None:
    """SIGKILL what is left of the process groups these ids lead or led."""
    for pid in leaders:
        with contextlib.suppress(OSError):
            if pid != os.getpgid(0):
                os.killpg(pid, signal.SIGKILL)


def group(leader: int) -> list[psutil.Process]:
    """The live processes of a process group; one that has ended and that its parent has not noticed is none."""
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
    """Whether a process runs; a zombie does not."""
    try:
        return _is_running(psutil.Process(pid))
    except _GONE:
        return False


def is_ending(pid: int) -> bool:
    """Whether a process is on its way out and runs no code of its own any more, however long the kernel may take.

    A GPU's driver takes seconds to let go of a context, and a rank's connections may be closed before that.
    """
    found, flags = _state_and_flags(pid)
    # A SIGKILL that still waits: the process has yet to come back from a call of the kernel's, and will go then.
    is_killed = any(_has(pid, mask, signal.SIGKILL) for mask in ("SigPnd", "ShdPnd"))
    return found in ("Z", "X") or bool(flags & _PF_EXITING) or is_killed


def state(pid: int) -> str:
    """The letter that ``ps`` shows for what a process does, ``D`` for one the kernel keeps; empty where it is gone."""
    return _state_and_flags(pid)[0]


def _state_and_flags(pid: int) -> tuple[str, int]:
    """From /proc/PID/stat: behind the name, which may hold anything, the state, and six fields on the flags."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return fields[0], int(fields[6])
    return "", 0


def is_stopped(pid: int) -> bool:
    """Whether a process stands still, after SIGSTOP for example."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except _GONE:
        return False


def ending(code: int) -> str:
    """An exit code in words; a negative one is the signal that killed the process, as subprocess tells it."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def oom_kills() -> int:
    """Processes the kernel has ended for lack of memory since the host started, in any container; 0 where unknown."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


def _find_by_environment(start: str) -> list[psutil.Process]:
    """By how a variable begins, its name first.

    Reads /proc itself: ten times faster than through psutil, and done after every launch.
    """
    found = []
    text = f"\0{start}".encode()
    for entry in os.scandir("/proc"):
        with contextlib.suppress(*_GONE, OSError):
            if entry.name.isdecimal() and text in b"\0" + Path(entry.path, "environ").read_bytes():
                process = psutil.Process(int(entry.name))
                if _is_running(process):
                    found.append(process)
    return found


def _is_running(process: psutil.Process) -> bool:
    """A zombie has ended: in a container its adoptive parent may take seconds to notice."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except _GONE:
        return False
