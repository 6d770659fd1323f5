"""Every private part of Python that ranks and the agent use: to be looked at when a release of Python is new.

None has a public way. All of it is there from Python 3.11 to 3.13; what differs is said beside it. The agent uses it
before it has imported torch.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import multiprocessing.util
import os
import sys
import tempfile
import threading
import traceback
import weakref
from collections.abc import Callable, Collection
from multiprocessing import forkserver, resource_tracker
from typing import Any

TEMPORARY_FILE: type[Any] = tempfile._TemporaryFileWrapper
"""What ``NamedTemporaryFile`` returns."""


def place_sockets(folder: str, *, semaphores: str = "") -> None:
    """Let multiprocessing make its sockets in a folder, and begin the names of semaphores with a slash and a text."""
    config = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    config["tempdir"] = folder
    if semaphores:
        config["semprefix"] = semaphores


def end_with(end: Callable[[], None]) -> None:
    """Let a multiprocessing child do this first, when it has run its target and put its result away.

    Until 3.12 it runs its finalizers and then waits for its threads; from 3.13 on it is the other way round.

    ``end`` may call :func:`wait_for_threads`.
    """
    if sys.version_info < (3, 13):
        multiprocessing.util.Finalize(None, end, exitpriority=sys.maxsize)
        return
    has_begun = threading.Event()

    def begin() -> None:
        if not has_begun.is_set():  # waiting for threads calls this once more
            has_begun.set()
            end()

    threading._register_atexit(begin)


def forget_parents_exit() -> None:
    """Leave handlers, finalizers and the resource tracker to the process that this one was forked from."""
    atexit._clear()
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    atexit.register(logging.shutdown)
    atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]
    tracker: Any = resource_tracker._resource_tracker
    tracker._fd = tracker._pid = None


def become_main_process() -> None:
    """Be to multiprocessing what a process is that it did not start: without a parent, with a key of its own.

    The folder of its sockets and the names of its semaphores stay: a later run finds by them what this one left.
    """
    own: Any = multiprocessing.current_process()
    own._identity, own._name, own._parent_pid = (), "MainProcess", None
    own._config.pop("daemon", None)
    own.authkey = os.urandom(32)
    multiprocessing.process._parent_process = None  # type: ignore[attr-defined]
    forkserver._forkserver.__init__()  # type: ignore[misc] # a forkserver that this process starts is its own


def wait_for_threads() -> None:
    """As the interpreter does at its end: threads that are no daemons, and the workers of concurrent.futures."""
    threading._shutdown()  # type: ignore[attr-defined]


def run_exit_handlers() -> None:
    """What was registered with ``atexit``, the last first."""
    atexit._run_exitfuncs()


def fork_forkserver(*, close: Collection[int]) -> None:
    """Start this process's forkserver as a fork of it, not as a Python of its own: what is imported here is there.

    To be called while there is one thread. What the modules have registered with ``atexit`` is done there, too.

    It closes the descriptors that only this process is to have.
    """
    resource_tracker.ensure_running()
    tracker: Any = resource_tracker._resource_tracker
    own = multiprocessing.util.spawnv_passfds
    before = open_descriptors()

    def fork(_: str, arguments: list[str], descriptors: list[int]) -> int:
        multiprocessing.util.spawnv_passfds = own  # in both: this is the way to start other helpers, too
        pid = os.fork()
        if pid == 0:
            try:
                for descriptor in {*close, tracker._fd, *(open_descriptors() - before)}.difference(descriptors):
                    os.close(descriptor)
                tracker._fd = tracker._pid = None
                forkserver._forkserver.__init__()  # type: ignore[misc] # it is locked, and knows of no forkserver
                exec(arguments[-1], {"__name__": "forkserver"})
            except SystemExit:
                wait_for_threads()
                run_exit_handlers()
            except BaseException:  # noqa: BLE001 nobody is left who could handle it
                traceback.print_exc()
            finally:
                os._exit(0)
        return pid

    multiprocessing.util.spawnv_passfds = fork  # type: ignore[assignment] # it is called with these types alone
    try:
        forkserver.ensure_running()
    finally:
        multiprocessing.util.spawnv_passfds = own


def open_descriptors() -> set[int]:
    found = {int(name) for name in os.listdir("/proc/self/fd")}
    return {number for number in found if os.path.exists(f"/proc/self/fd/{number}")}  # not the list's own


def forkserver_pid() -> int | None:
    """The process that this one's ranks are forked from."""
    pid: int | None = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    return pid


def share_forkserver() -> None:
    """From now on let this process, which a forkserver has started, start others by the same one, and not its own.

    Python starts it anew where it is not this process's child. Its address was inherited.
    """
    forkserver._forkserver.ensure_running = lambda: None  # type: ignore[method-assign]


def let_helpers_end() -> None:
    """Close what keeps this process's forkserver and resource tracker alive."""
    for helper, name in (
        (forkserver._forkserver, "_forkserver_alive_fd"),
        (resource_tracker._resource_tracker, "_fd"),
    ):
        descriptor = getattr(helper, name)
        if descriptor is not None:
            os.close(descriptor)
            setattr(helper, name, None)
