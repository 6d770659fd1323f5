"""Processes of a test: those it left behind, and waiting for what they do."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil

MARK = "DISTBENCH_TEST"
"""Variable in the environment of every process that a test starts."""
LIMIT_S = 300.0
"""How long what a test waits for may take. Generous: a busy machine is slow, and what hangs does so for ever."""
EXIT_S = 30.0
"""How long processes that were ended may take to be gone."""


def marked_processes(value: str) -> list[str]:
    """Live processes that inherited our mark, by command line."""
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.environ().get(MARK) == value
                and process.status() != psutil.STATUS_ZOMBIE
                and process.pid != os.getpid()
            ):
                found.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
        except (psutil.Error, OSError):
            continue
    return found


def wait_for(
    is_so: Callable[[], bool], process: subprocess.Popen[str] | None = None, *, limit_s: float = LIMIT_S
) -> None:
    """Wait until something is so, as long as ``process`` lives."""
    deadline = time.monotonic() + limit_s
    while not is_so():
        assert process is None or process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def has_ended(process: psutil.Process) -> bool:
    """Gone, or dead and not waited for by its parent yet."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def working_in(folder: Path) -> list[psutil.Process]:
    """Live processes whose working directory this is, whatever their environment says; not the test's own."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_ours = process.pid != os.getpid() and process.cwd() == str(folder)
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
