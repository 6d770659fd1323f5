"""What of this host a measurement holds while it runs: the host itself, and its GPUs. Locks, released with the process.

Both are file locks: they work over pytest-xdist workers, separate runs and containers that share the lock folder, and
the kernel frees them when their process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from pytest_distbench.errors import LauncherError

WAIT_S = 3600.0
"""How long a measurement waits for another one."""
TELL_S = 60.0
"""How often it says so."""


@contextlib.contextmanager
def alone_on_this_host(*, on_wait: Callable[[str], None]) -> Iterator[None]:
    """One measurement at a time per host and user.

    Args:
        on_wait: told, if another measurement has to end first, and again once a minute.

    Raises:
        LauncherError: the other one did not end in time.
    """
    with _held(f"distbench-{os.getuid()}.lock", "another measurement on this host", on_wait):
        yield


@contextlib.contextmanager
def lease(uuids: Sequence[str], *, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold GPUs, by UUID, against every other run of any user on this host.

    Args:
        uuids: of the GPUs; taken in sorted order, so that two runs cannot wait for each other.
        on_wait: as for :func:`alone_on_this_host`.

    Raises:
        LauncherError: the other one did not end in time.
    """
    with contextlib.ExitStack() as stack:
        for uuid in sorted(set(uuids)):
            name = f"distbench-gpu-{re.sub(r'[^A-Za-z0-9-]', '_', uuid)}.lock"
            stack.enter_context(_held(name, f"the run that uses {uuid}", on_wait))
        yield


def _wait(lock: FileLock, whose: str, on_wait: Callable[[str], None]) -> None:
    """Raises Timeout after :data:`WAIT_S`."""
    waited_s = 0.0
    while True:
        on_wait(f"waiting for {whose}" + (f" since {waited_s / 60:.0f} min" if waited_s else ""))
        step_s = min(TELL_S, WAIT_S - waited_s)
        try:
            lock.acquire(timeout=step_s)
        except Timeout:
            waited_s += step_s
            if waited_s >= WAIT_S:
                raise
        else:
            return


@contextlib.contextmanager
def _held(name: str, whose: str, on_wait: Callable[[str], None]) -> Iterator[None]:
    path = Path(tempfile.gettempdir()) / name
    lock = FileLock(path, mode=0o666)
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            _wait(lock, whose, on_wait)
    except Timeout as error:
        raise LauncherError(f"{whose} has held {path} for {WAIT_S:.0f} s; end it and run again") from error
    except OSError as error:
        raise LauncherError(
            f"cannot lock {path}: {error.strerror or error}; TMPDIR must be a folder this user may write to"
        ) from error
    try:
        yield
    finally:
        lock.release()
