"""Locks that a measurement holds on this host: the host itself, its GPUs, and a share of its CPUs.

File locks (flock(2)) hold over pytest-xdist workers, runs and containers with the same lock folder; the kernel frees
them with their process. The process that waits longest is next: in a queue file next to each lock file every waiting
process holds the byte of its number (fcntl(2)).

Control groups limit CPU time: the cpu controller of cgroups, version 1 or 2 (cgroups(7)), in a group below this
process's, whose limits stay. Under version 2 it is threaded: a group that holds processes may have none with a
controller below it.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import re
import shlex
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import psutil

from pytest_distbench.errors import AroundUnavailable, LauncherError
from pytest_distbench.machine.secrets import mask_arguments
from pytest_distbench.units import about

WAIT_S = 1800.0  # how long a measurement waits for another one
TURN_S = 20.0  # how long it waits for a launch without timings, and such a launch for one of its
REPORT_S = 60.0  # how often it says so
_LOOK_S = 2.0  # how often it looks who holds the lock
_PAUSE_S = 0.05  # between two tries to take it
_LONGEST_COMMAND = 150
_OF_XDIST = "exec(eval(sys.stdin.readline()))"
"""Part of the command line of a process that pytest-xdist has started; its parent has the command that was typed."""
_FLOCK = "hhqqi4x"  # the kernel's record of a lock of bytes: kind, whence, start, length, process
_LONGEST_NUMBER, _LAST_NUMBER = 19, 10**18
_OWN, _SHARED = 0o600, 0o666


@contextlib.contextmanager
def alone_on_this_host(*, on_wait: Callable[[str], None], waits: bool = True) -> Iterator[bool]:
    """Lock this host for one measurement of this user; yields True, or with ``waits=False`` whether it was free.

    ``on_wait`` is called with a sentence on who holds the lock, and then once a minute; later if the holder is another
    worker of the same pytest-xdist run.
    """
    patience_s = None if waits else 0.0
    with _held(_of_host(), "another measurement on this host", on_wait, mode=_OWN, patience_s=patience_s) as held:
        yield held is not None


@contextlib.contextmanager
def with_others_on_this_host(*, on_wait: Callable[[str], None], waits: bool = True) -> Iterator[bool]:
    """Share this host with runs that hold it likewise, not with one that is alone; yields as alone_on_this_host."""
    whose, patience_s = "a measurement that is alone on this host", None if waits else 0.0
    with _held(_of_host(), whose, on_wait, mode=_OWN, how=fcntl.LOCK_SH, patience_s=patience_s) as held:
        yield held is not None


@contextlib.contextmanager
def turn_of_a_launch(*, has_timings: bool) -> Iterator[None]:
    """Hold the host for one launch of a measurement that is alone on it, or for launches of others without timings.

    They alternate, and none keeps the other waiting for more than :data:`TURN_S`.
    """
    name, how = f"distbench-{os.getuid()}-launch.lock", fcntl.LOCK_EX if has_timings else fcntl.LOCK_SH
    patience_s = None if has_timings else TURN_S
    with _held(name, "launches without timings", lambda text: None, mode=_OWN, how=how, patience_s=patience_s) as held:
        if has_timings or held is None:
            yield
            return
        ends = threading.Timer(TURN_S, fcntl.flock, (held, fcntl.LOCK_UN))
        ends.daemon = True
        ends.start()
        try:
            yield
        finally:
            ends.cancel()
            ends.join()


@contextlib.contextmanager
def lease(uuids: Sequence[str], *, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold GPUs, by UUID, against every other run of any user on this host: all may write to these lock files.

    They are locked in sorted order, so that two runs cannot wait for each other.
    """
    with contextlib.ExitStack() as stack:
        for uuid in sorted(set(uuids)):
            name = f"distbench-gpu-{re.sub(r'[^A-Za-z0-9-]', '_', uuid)}.lock"
            stack.enter_context(_held(name, f"the run that uses {uuid}", on_wait, mode=_SHARED))
        yield


def _holder(path: Path) -> tuple[str, int | None, bool]:
    """Holder of a lock in words, its process id or None, and whether it belongs to the same pytest-xdist run."""
    with contextlib.suppress(OSError, psutil.Error, ValueError, IndexError):
        inode = str(path.stat().st_ino)  # overlayfs and btrfs give stat() another device than /proc/locks has
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == inode:
                process = psutil.Process(int(fields[4]))
                above = process.parent() if _OF_XDIST in " ".join(process.cmdline()) else None
                if above is not None and above.pid == os.getppid():
                    return f"another worker of this run (pytest -n), pid {process.pid}", process.pid, True
                who = above or process
                command = " ".join(shlex.join(mask_arguments(who.cmdline())).split())
                if len(command) > _LONGEST_COMMAND:
                    command = f"{command[:_LONGEST_COMMAND]}..."
                whose = f" of {who.username()}" if who.uids().real != os.getuid() else ""
                ran = about(time.time() - who.create_time())
                text = f"pid {who.pid}{whose} ({command}), which has run for {ran}"
                return text, who.pid, False
    return "a process that is not seen from here, perhaps in another container", None, False


def _wait(
    path: Path,
    whose: str,
    on_wait: Callable[[str], None],
    take: Callable[[], int | None],
    patience_s: float | None,
) -> int | None:
    began = time.monotonic()
    reported: float | None = None
    most_s = WAIT_S if patience_s is None else patience_s
    while (waited := time.monotonic() - began) < most_s:
        who, _, is_ours = _holder(path)
        if waited - (reported or 0.0) >= REPORT_S or (reported is None and not is_ours):
            since = f" since {about(waited)}" if reported is not None else ""
            on_wait(f"waiting{since} for {whose}: {who}")
            reported = waited
        look_again = began + min(waited + min(_LOOK_S, REPORT_S), most_s)
        while time.monotonic() < look_again:
            if (descriptor := take()) is not None:
                return descriptor
            time.sleep(_PAUSE_S)
    if patience_s is not None:
        return None
    who, pid, _ = _holder(path)
    end = "" if pid is None else f" (kill {pid})"
    raise LauncherError(
        f"waited {WAIT_S / 60:.0f} min for {whose}, and did not get {path}; it is held by {who}. "
        f"Run again when that is over, or end it{end}"
    )


@contextlib.contextmanager
def _held(
    name: str,
    whose: str,
    on_wait: Callable[[str], None],
    *,
    mode: int,
    how: int = fcntl.LOCK_EX,
    patience_s: float | None = None,
) -> Iterator[int | None]:
    """Hold a lock file in TMPDIR; yields its descriptor, or None if it was not free within ``patience_s``."""
    path = Path(tempfile.gettempdir()) / name
    try:
        with _queued(path.with_suffix(".queue"), mode) as is_next:

            def take() -> int | None:
                return _take(path, mode, how) if is_next() else None

            if (descriptor := take()) is None:
                descriptor = _wait(path, whose, on_wait, take, patience_s)
    except OSError as error:
        raise LauncherError(
            f"cannot lock {path}: {error.strerror or error}; TMPDIR must be a folder this user may write to"
        ) from error
    if descriptor is None:
        yield None
        return
    try:
        yield descriptor
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process that was forked meanwhile has the descriptor too
        os.close(descriptor)


@contextlib.contextmanager
def _queued(path: Path, mode: int) -> Iterator[Callable[[], bool]]:
    """Take a place in the queue of a lock; yields a function that returns whether the place is the first.

    The kernel frees the place when this process ends; children do not inherit it.
    """
    descriptor = _open(path, mode)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # for the time it takes to read a number and write the next
        try:
            number = int(os.pread(descriptor, _LONGEST_NUMBER, 0) or b"0") % _LAST_NUMBER
            os.pwrite(descriptor, str(number + 1).encode().ljust(_LONGEST_NUMBER), 0)
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)

        def is_next() -> bool:
            if number == 0:
                return True
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, number, 0)
            kind, *_ = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
            return bool(kind == fcntl.F_UNLCK)

        yield is_next
    finally:
        os.close(descriptor)


def _take(path: Path, mode: int, how: int) -> int | None:
    descriptor = _open(path, mode)
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:  # else somebody has removed the file, and others lock a new one
            return descriptor
    except BlockingIOError:
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _open(path: Path, mode: int) -> int:
    """Open or make a lock file; without O_CREAT if it exists, which Linux refuses for others' files in /tmp."""
    flags = os.O_RDWR | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        return os.open(path, flags)
    os.fchmod(descriptor, mode)  # whatever the umask
    return descriptor


def _of_host() -> str:
    return f"distbench-{os.getuid()}.lock"


PERIOD_US = 5_000
"""Period of a CPU quota in microseconds, short so that it slows each iteration: with 0.3 of a core a step of 5 ms takes
16 ms (25th percentile), and 9 ms under the kernel's own period of 100 ms."""
LEAST_US = 1_000  # the kernel takes no shorter quota and no shorter period
_PATIENCE_S = 2.0  # time for ended processes to leave their group
_RETRY_S = 0.01
_GROUP = re.compile(r"distbench-(\d+)-rank\d+")
_ADVICE = "run pytest as root, in a privileged container, or below systemd-run --user --scope -p Delegate=yes"
_NAMES = {1: "cpu", 2: ""}  # the controller's hierarchy in /proc/self/cgroup; version 2 has no name
_CONTROLLERS = "cgroup.controllers"  # a file that groups of version 2 have
_FILESYSTEMS = {1: "cgroup", 2: "cgroup2"}

Version = Literal[1, 2]


def cpu_group(controller: Path, rank: int) -> Path:
    return controller / f"distbench-{os.getpid()}-rank{rank}"


def make_group(group: Path, cpus: float) -> None:
    period_us = max(PERIOD_US, math.ceil(LEAST_US / cpus))
    quota_us = round(cpus * period_us)
    if (group.parent / _CONTROLLERS).exists():
        settings = {
            group / "cgroup.type": "threaded",
            group.parent / "cgroup.subtree_control": "+cpu",
            group / "cpu.max": f"{quota_us} {period_us}",
        }
    else:
        settings = {group / "cpu.cfs_period_us": str(period_us), group / "cpu.cfs_quota_us": str(quota_us)}
    path = group
    try:
        group.mkdir(exist_ok=True)
        for path, value in settings.items():
            path.write_text(value)
    except OSError as error:
        raise _unavailable(f"{path}: {error.strerror}") from error


def remove_stale(controller: Path) -> None:
    """Remove groups of pytest processes that ended without doing so; one in use stays."""
    for group in controller.glob("distbench-*"):
        named = _GROUP.fullmatch(group.name)
        if named is not None and not psutil.pid_exists(int(named[1])):
            with contextlib.suppress(OSError):
                group.rmdir()


def find_controller(root: Path = Path("/")) -> Path:
    """The cpu controller's folder for this process's group; :class:`AroundUnavailable` if none is handed down."""
    for version in (1, 2):
        if (folder := _own_group(root, version)) is not None:
            return folder
    raise _unavailable("no cpu controller in /proc/self/cgroup")


def remove(group: Path) -> bool:
    """Remove a group when its last process has ended; return False if it is still there."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            group.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_RETRY_S)
        else:
            return True


def throttled(group: Path) -> float:
    """Share of periods with something to compute in which a group's quota was used up."""
    lines = (line.split() for line in (group / "cpu.stat").read_text().splitlines())
    counted = {name: int(value) for name, value in lines}
    return counted.get("nr_throttled", 0) / max(1, counted.get("nr_periods", 0))


def _own_group(root: Path, version: Version) -> Path | None:
    try:
        own = [line.split(":", 2) for line in (root / "proc/self/cgroup").read_text().splitlines()]
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError as error:
        raise _unavailable(f"{error.filename}: {error.strerror}") from error
    path = next((path for _, names, path in own if _NAMES[version] in names.split(",")), None)
    if path is None:
        return None
    for mount in mounts:
        place, _, what = mount.partition(" - ")
        top, at = place.split()[3:5]
        filesystem, _, options = what.split()
        is_it = filesystem == _FILESYSTEMS[version] and (version == 2 or _NAMES[1] in options.split(","))
        if is_it and Path(path).is_relative_to(top):
            folder = root / at.lstrip("/") / Path(path).relative_to(top)
            if version == 1:
                return folder
            with contextlib.suppress(OSError):  # groups below one of version 2 may have the controller, or may not
                return folder if "cpu" in (folder / _CONTROLLERS).read_text().split() else None
            return None
    raise _unavailable(f"{path} of the cpu controller is mounted nowhere")


def _unavailable(why: str) -> AroundUnavailable:
    return AroundUnavailable(f"needs a control group that may be written: {why}; {_ADVICE}")
