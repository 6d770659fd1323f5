"""CPU use during a launch, by its own processes and by others, read from /proc.

It works without torch, as a command's guardian uses it too. One process of a launch measures for all.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from pytest_distbench.records.environment import Load
from pytest_distbench.worker.clock import HostClock

_TICKS = os.sysconf("SC_CLK_TCK")
_NANOSECONDS = 1e-9
_READ_BYTES = 65536


def usable_cpus() -> frozenset[int]:
    return frozenset(os.sched_getaffinity(0))


def busy_s(cpus: frozenset[int]) -> tuple[float, float]:
    """Seconds since boot that these CPUs were busy, summed, and that other virtual machines stole from them.

    Other CPUs do not count: work there takes nothing from this launch. With CPUs offline, when indices do not match,
    all count.
    """
    per_cpu = psutil.cpu_times(percpu=True)
    if len(per_cpu) == os.sysconf("SC_NPROCESSORS_CONF") and max(cpus) < len(per_cpu):
        per_cpu = [per_cpu[index] for index in cpus]
    return sum(map(_busy_s, per_cpu)), sum(getattr(times, "steal", 0.0) for times in per_cpu)


def _busy_s(times: Any) -> float:
    return float(sum(times) - sum(getattr(times, name, 0.0) for name in ("idle", "iowait", "guest", "guest_nice")))


def oldest_marked(variable: str) -> int:
    """The oldest of consecutive ancestors started with the same value of a variable, or this process.

    Orphans of a launch are its descendants, as the process that starts a launch adopts them.
    """
    mark = f"\0{variable}={os.environ.get(variable, '')}\0".encode()
    found = pid = os.getpid()
    while fields := read_proc(f"/proc/{pid}/stat").rpartition(b")")[2].split():
        pid = int(fields[1])
        if mark not in b"\0" + read_proc(f"/proc/{pid}/environ"):
            break
        found = pid
    return found


class Descendants:
    def __init__(self, root: int) -> None:
        self._root = root
        self.cpu_s = 0.0  # seconds that they and what they have waited for have computed
        self.threads: dict[tuple[int, int], tuple[float, float]] = {}
        """(pid, tid) -> seconds it ran, and waited for a CPU, when last seen."""
        self.look()

    def look(self) -> None:
        everyone = all_processes()
        members = below([self._root], everyone)
        # with what they have waited for (proc(5))
        ticks = sum(sum(map(int, everyone[pid][11:15])) for pid in members if pid in everyone)
        self.cpu_s = ticks / _TICKS
        for pid in members:
            with contextlib.suppress(OSError):
                for name in os.listdir(f"/proc/{pid}/task"):
                    fields = read_proc(f"/proc/{pid}/task/{name}/schedstat").split()
                    if len(fields) == 3:  # ran, waited, how often; nothing where nobody counts them
                        self.threads[pid, int(name)] = int(fields[0]) * _NANOSECONDS, int(fields[1]) * _NANOSECONDS


class LoadWindow:
    """A time window of a launch, from :meth:`begin` to :meth:`end`, which sets ``load``.

    All processes of the launch descend from ``root``, or only ``wall_s`` is measured if that is None.
    """

    def __init__(self, root: int | None, cpus: frozenset[int]) -> None:
        self._root = root
        self._cpus = cpus
        self.wall_s = 0.0
        self.load: Load | None = None

    def begin(self) -> None:
        if self._root is not None:
            self._family = Descendants(self._root)
            self._before = self._family.cpu_s, dict(self._family.threads)
            self._busy = busy_s(self._cpus)
        self._start = HostClock.perf_counter()

    def look(self) -> None:
        """Note the threads that exist, so that those which end within the window count until now."""
        self._family.look()

    def end(self) -> None:
        self.wall_s = HostClock.perf_counter() - self._start
        if self._root is not None:
            with contextlib.suppress(OSError):  # whoever was measured may have opened all files it may
                busy, stolen = (now - then for now, then in zip(busy_s(self._cpus), self._busy, strict=True))
                self._family.look()
                cpu_s, threads = self._before
                now = self._family.threads
                ran_s, waited_s = (sum(now[t][i] - threads.get(t, (0.0, 0.0))[i] for t in now) for i in (0, 1))
                self.load = Load(
                    wall_s=self.wall_s,
                    cpus=len(self._cpus),
                    busy_s=busy,
                    stolen_s=stolen,
                    own_s=self._family.cpu_s - cpu_s,
                    ran_s=ran_s,
                    waited_s=waited_s,
                )


def all_processes() -> dict[int, list[bytes]]:
    """Process id -> the first 15 fields of its ``stat`` behind its name (proc(5)), of all processes of this host."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            fields = read_proc(f"/proc/{name}/stat").rpartition(b")")[2].split(None, 15)
            if len(fields) > 14:  # it has not ended meanwhile
                found[int(name)] = fields
    return found


def below(roots: Iterable[int], everyone: Mapping[int, Sequence[bytes]]) -> list[int]:
    """Process ids of some processes and of their descendants."""
    children: dict[int, list[int]] = {}
    for pid, fields in everyone.items():
        children.setdefault(int(fields[1]), []).append(pid)
    found: dict[int, None] = {}
    waiting = [*roots]
    while waiting:
        if (pid := waiting.pop()) not in found:
            found[pid] = None
            waiting += children.get(pid, ())
    return list(found)


def read_proc(path: str) -> bytes:
    """A file of /proc, or b"" if its process has gone or is another user's.

    A launch reads a thousand: that is a third of the time which one through :class:`~pathlib.Path` takes.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        found = b""
        while part := os.read(descriptor, _READ_BYTES):
            found += part
        return found
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def process_began(pid: int | str = "self") -> float:
    """When a process of this host was made, CLOCK_MONOTONIC seconds, to 0.01 s (proc(5)); OSError if it is gone."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    asleep = time.clock_gettime(time.CLOCK_BOOTTIME) - HostClock.monotonic()
    return ticks / os.sysconf("SC_CLK_TCK") - asleep
