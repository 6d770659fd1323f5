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


@contextlib.contextmanager
def alone_on_this_host(*, on_wait: Callable[[str], None]) -> Iterator[None]:
    """One measurement at a time per host and user.

    Args:
        on_wait: told once, if another measurement has to end first.

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
        on_wait: told if another run has to let go first.

    Raises:
        LauncherError: the other one did not end in time.
    """
    with contextlib.ExitStack() as stack:
        for uuid in sorted(set(uuids)):
            name = f"distbench-gpu-{re.sub(r'[^A-Za-z0-9-]', '_', uuid)}.lock"
            stack.enter_context(_held(name, f"the run that uses {uuid}", on_wait))
        yield


@contextlib.contextmanager
def _held(name: str, whose: str, on_wait: Callable[[str], None]) -> Iterator[None]:
    path = Path(tempfile.gettempdir()) / name
    lock = FileLock(path, mode=0o666)
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            on_wait(f"waiting for {whose}")
            lock.acquire(timeout=WAIT_S)
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
