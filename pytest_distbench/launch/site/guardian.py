"""The parent of one torchrun: nothing that torchrun starts outlives it, nor pytest, whatever happens to either.

It runs a command, and ends as that ends. It adopts every orphan among its descendants, so that a child with a session
and an environment of its own is found too.
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil

from pytest_distbench.launch.site import processes
from pytest_distbench.launch.site.processes import Throttle
from pytest_distbench.records.environment import End
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.worker.load import LoadWindow, usable_cpus

if TYPE_CHECKING:  # a guardian has no use for it
    from pytest_distbench.records.plan import LaunchPlan

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_HELPER = re.compile(r"multiprocessing\.(resource_tracker|forkserver|spawn)")
"""Of Python: such a process ends a moment after the one it is for."""
_LOOK_S = 0.5
"""Between looks at the threads of a command: what they did is gone with them. A look costs some milliseconds."""
_NOT_STARTED = 126
"""Exit code of a shell for a program that is there and cannot be run."""


def adopt_orphans() -> None:
    """Make this process the parent of all its descendants whose own parent ends (Linux, prctl(2))."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with(parent: int) -> None:
    """Get SIGTERM when the parent of this process, which is to be this one, ends (Linux, prctl(2))."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)  # it has ended before


def remove_traces(launch: LaunchFiles) -> None:
    """Remove a launch's sockets, and its plan, which holds secrets of the environment; of its jobs too."""
    for files in (launch, *launch.jobs()):
        for path in (files.control, files.plan):
            path.unlink(missing_ok=True)
        shutil.rmtree(files.sockets, ignore_errors=True)


_PACKAGE = str(Path(__file__).resolve().parents[3])
_START = (
    f"import sys; sys.path.append({_PACKAGE!r}); from pathlib import Path\n"
    "from pytest_distbench.launch.site.guardian import main\n"
    "from pytest_distbench.records.launch_files import LaunchFiles\n"
    "lifeline, looks, delay, directory, *command = sys.argv[1:]\n"
    "main(int(lifeline), LaunchFiles(Path(directory)), command, looks=looks == 'looks', delay=float(delay))"
)


def start(
    plan: LaunchPlan, words: Sequence[str], *, variables: Mapping[str, str], log: Path, looks: bool = False
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a command line in the place of a plan, below a guardian; and the descriptor that the guardian lives by.

    Raises:
        OSError: no process could be started.
    """
    lifeline, theirs = os.pipe()
    given = [str(lifeline), "looks" if looks else "", str(plan.delay if looks else 0.0), plan.directory, *words]
    try:
        with open(log, "ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START, *given],
                env=dict(variables),
                cwd=plan.working_dir,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                pass_fds=[lifeline],
                start_new_session=True,
            )
    except OSError:
        os.close(theirs)
        raise
    finally:
        os.close(lifeline)
    return process, theirs


def main(lifeline: int, launch: LaunchFiles, command: list[str], *, looks: bool = False, delay: float = 0.0) -> None:
    """Run the command until it or pytest ends; then end all its descendants, and this process.

    pytest holds the other end of the lifeline. One that looks notes what the command used, and how long others kept it
    from the CPUs: it has no ranks that do. A delay is the share by which all of it is to take longer.
    """
    adopt_orphans()
    window = LoadWindow(os.getpid(), usable_cpus()) if looks else None
    fcntl.fcntl(lifeline, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    try:
        child = subprocess.Popen(command, start_new_session=True)
    except OSError as error:
        print(_why_not(command[0], error), file=sys.stderr, flush=True)
        os._exit(_NOT_STARTED)
    throttle = Throttle(delay)
    with selectors.DefaultSelector() as selector:
        selector.register(os.pidfd_open(child.pid), selectors.EVENT_READ)
        selector.register(lifeline, selectors.EVENT_READ)
        while not (ended := {key.fd for key, _ in selector.select(_LOOK_S if looks else None)}):
            if window is not None:
                window.look()
    throttle.close()
    if window is not None:
        window.end()
    if lifeline not in ended:
        _note_left(launch)
    processes.kill_descendants()
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


def _note_left(launch: LaunchFiles) -> None:
    """Keep the command lines of what goes on though the command has ended; it is ended now."""
    left = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            if process.status() != psutil.STATUS_ZOMBIE and line and not _HELPER.search(" ".join(line)):
                left.append(line)
    if left:
        launch.left.write_text(json.dumps(left))


def _why_not(program: str, error: OSError) -> str:
    """Why a program cannot be started: one that is there, and may be executed, was found before."""
    hint = ""
    if error.errno == errno.ENOEXEC:
        hint = "; a script says in its first line what runs it: #!/bin/sh"
    elif error.errno == errno.ENOENT and os.path.exists(program):
        hint = "; is what its first line names, after #!, installed?"
    return f"cannot start {program!r}: {error.strerror}{hint}"
