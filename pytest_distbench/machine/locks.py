"""What of this host a measurement holds while it runs: the host itself, and its GPUs. Locks, released with the process.

Both are file locks (flock(2)): they work over pytest-xdist workers, separate runs and containers that share the lock
folder, and the kernel frees them when their process ends, however it ends. Who waits longest is next: beside each lock
file lies a queue, in which every process that wants the lock holds the byte of its number (fcntl(2)) until it has it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shlex
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from pytest_distbench.errors import LauncherError
from pytest_distbench.machine.secrets import mask_arguments

WAIT_S = 1800.0
"""How long a measurement waits for another one."""
TELL_S = 60.0
"""How often it says so."""
_LOOK_S = 2.0
"""How often it looks who holds the lock."""
_PAUSE_S = 0.05
"""Between two tries to take it."""
_LONGEST_COMMAND = 150
_OF_XDIST = "exec(eval(sys.stdin.readline()))"
"""In the command line of a process that pytest-xdist has started: who knows what was typed is its parent."""
_FLOCK = "hhqqi4x"
"""The kernel's record of a lock of bytes: kind, whence, start, length, process."""
_LONGEST_NUMBER, _LAST_NUMBER = 19, 10**18
_OWN, _SHARED = 0o600, 0o666


@contextlib.contextmanager
def alone_on_this_host(*, on_wait: Callable[[str], None]) -> Iterator[None]:
    """One measurement at a time per host and user.

    Args:
        on_wait: told who has to end first, and again once a minute. Another worker of one's own pytest-xdist run is not
            worth a word before that.

    Raises:
        LauncherError: the other one did not end in time.
    """
    with _held(_of_host(), "another measurement on this host", on_wait, mode=_OWN):
        yield


@contextlib.contextmanager
def beside_others_on_this_host(*, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Measure beside those who say this too, and beside none that is :func:`alone_on_this_host`.

    Raises:
        LauncherError: the one that is alone did not end in time.
    """
    with _held(_of_host(), "a measurement that is alone on this host", on_wait, mode=_OWN, how=fcntl.LOCK_SH):
        yield


@contextlib.contextmanager
def lease(uuids: Sequence[str], *, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold GPUs, by UUID, against every other run of any user on this host; so all may write to these lock files.

    Args:
        uuids: of the GPUs; taken in sorted order, so that two runs cannot wait for each other.
        on_wait: as for :func:`alone_on_this_host`.

    Raises:
        LauncherError: the other one did not end in time.
    """
    with contextlib.ExitStack() as stack:
        for uuid in sorted(set(uuids)):
            name = f"distbench-gpu-{re.sub(r'[^A-Za-z0-9-]', '_', uuid)}.lock"
            stack.enter_context(_held(name, f"the run that uses {uuid}", on_wait, mode=_SHARED))
        yield


@dataclass(frozen=True)
class _Holder:
    """Who holds a lock.

    Attributes:
        pid: that ends it; None: it cannot be seen from here.
        is_ours: another worker of one's own pytest-xdist run.
    """

    who: str = "a process that is not seen from here, perhaps in another container"
    pid: int | None = None
    is_ours: bool = False


def _holder(path: Path) -> _Holder:
    """Who holds a file lock, as the kernel tells (proc_locks(5))."""
    with contextlib.suppress(OSError, psutil.Error, ValueError, IndexError):
        found = path.stat()
        place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5] == place:
                return _described(psutil.Process(int(fields[4])))
    return _Holder()


def _described(process: psutil.Process) -> _Holder:
    is_worker = _OF_XDIST in " ".join(process.cmdline())
    above = process.parent() if is_worker else None
    named = above or process
    command = " ".join(shlex.join(mask_arguments(named.cmdline())).split())
    if len(command) > _LONGEST_COMMAND:
        command = f"{command[:_LONGEST_COMMAND]}..."
    whose = f" of {named.username()}" if named.uids().real != os.getuid() else ""
    minutes = (time.time() - named.create_time()) / 60
    return _Holder(
        who=f"pid {named.pid}{whose} ({command}), which has run for {minutes:.0f} min",
        pid=named.pid,
        is_ours=above is not None and above.pid == os.getppid(),
    )


def _wait(path: Path, whose: str, on_wait: Callable[[str], None], take: Callable[[], int | None]) -> int:
    """Wait until the lock is free, and take it.

    Raises:
        LauncherError: it was not within :data:`WAIT_S`.
    """
    began = time.monotonic()
    told: float | None = None
    while (waited := time.monotonic() - began) < WAIT_S:
        holder = _holder(path)
        if waited - (told or 0.0) >= TELL_S or (told is None and not holder.is_ours):
            since = f" since {waited / 60:.0f} min" if told is not None else ""
            on_wait(f"waiting{since} for {whose}: {holder.who}")
            told = waited
        look_again = began + min(waited + min(_LOOK_S, TELL_S), WAIT_S)
        while time.monotonic() < look_again:
            if (descriptor := take()) is not None:
                return descriptor
            time.sleep(_PAUSE_S)
    holder = _holder(path)
    end = "" if holder.pid is None else f" (kill {holder.pid})"
    raise LauncherError(
        f"waited {WAIT_S / 60:.0f} min for {whose}, and did not get {path}; it is held by {holder.who}. "
        f"Run again when that is over, or end it{end}"
    )


@contextlib.contextmanager
def _held(
    name: str, whose: str, on_wait: Callable[[str], None], *, mode: int, how: int = fcntl.LOCK_EX
) -> Iterator[None]:
    path = Path(tempfile.gettempdir()) / name
    try:
        with _queued(path.with_suffix(".queue"), mode) as is_next:

            def take() -> int | None:
                return _take(path, mode, how) if is_next() else None

            if (descriptor := take()) is None:
                descriptor = _wait(path, whose, on_wait, take)
    except OSError as error:
        raise LauncherError(
            f"cannot lock {path}: {error.strerror or error}; TMPDIR must be a folder this user may write to"
        ) from error
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process that was forked meanwhile has the descriptor too
        os.close(descriptor)


@contextlib.contextmanager
def _queued(path: Path, mode: int) -> Iterator[Callable[[], bool]]:
    """A place in a queue, and whether it is the first: nobody waits who came before.

    The kernel frees the place of a process that has ended, and its children never have it.
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
    """The descriptor by which the lock is held; None where others hold it."""
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
    """The lock file, made if it is not there.

    One that another user has made is opened without O_CREAT, which Linux refuses in folders such as /tmp.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        return os.open(path, flags)
    os.fchmod(descriptor, mode)  # whatever the umask
    return descriptor


def _of_host() -> str:
    return f"distbench-{os.getuid()}.lock"
