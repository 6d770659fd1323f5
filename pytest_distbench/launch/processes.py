"""Finding and ending processes: by process id, by group, by what their environment says. Never by name."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

_LOOK_AGAIN_S = 0.002
_GONE = (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess)


def marked(variable: str, value: str) -> list[psutil.Process]:
    """Live processes that were started with ``variable=value`` in their environment."""
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with contextlib.suppress(*_GONE, OSError):
            if process.environ().get(variable) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def carrying(variable: str) -> list[psutil.Process]:
    """Live processes that have ``variable`` in their environment, whatever its value."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(*_GONE, OSError):
            if variable in process.environ() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def family(pids: Iterable[int]) -> list[psutil.Process]:
    """The live processes with these ids, and all their descendants."""
    found: dict[int, psutil.Process] = {}
    for pid in pids:
        with contextlib.suppress(*_GONE):
            process = psutil.Process(pid)
            for member in [process, *process.children(recursive=True)]:
                found[member.pid] = member
    return list(found.values())


def kill(processes: Iterable[psutil.Process], *, wait_s: float = 5.0) -> list[psutil.Process]:
    """SIGKILL processes and the groups they lead; returns those still alive after ``wait_s``."""
    victims = list(processes)
    for process in victims:
        with contextlib.suppress(*_GONE, OSError):
            if os.getpgid(process.pid) == process.pid and process.pid != os.getpgid(0):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
    deadline = time.monotonic() + wait_s
    while (alive := [p for p in victims if _is_running(p)]) and time.monotonic() < deadline:
        time.sleep(_LOOK_AGAIN_S)
    return alive


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes that may be gone already."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return _is_running(psutil.Process(pid))
    except _GONE:
        return False


def oom_kills() -> int:
    """Processes the kernel has ended for lack of memory since the host started, in any container; 0 where unknown."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


def _is_running(process: psutil.Process) -> bool:
    """A zombie has ended: in a container its adoptive parent may take seconds to notice."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except _GONE:
        return False
