"""Every private part of Python that ranks and their parent use: to be looked at when a release of Python is new.

None has a public way. All of it is there from Python 3.11 to 3.13. The parent uses it before it has imported torch.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import multiprocessing.util
import os
import tempfile
import threading
import weakref
from multiprocessing import resource_tracker
from typing import Any

TEMPORARY_FILE: type[Any] = tempfile._TemporaryFileWrapper
"""What ``NamedTemporaryFile`` returns."""


def place_sockets(folder: str) -> None:
    """Let multiprocessing make its sockets in a folder."""
    multiprocessing.current_process()._config["tempdir"] = folder  # type: ignore[attr-defined]


def name_semaphores(prefix: str) -> None:
    """Let multiprocessing begin the names of semaphores with a text, a slash first; in forked processes, too."""
    multiprocessing.current_process()._config["semprefix"] = prefix  # type: ignore[attr-defined]


def forget_parents_exit() -> None:
    """Leave handlers, finalizers and the resource tracker to the process that this one was forked from."""
    atexit._clear()
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    atexit.register(logging.shutdown)
    atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]
    tracker: Any = resource_tracker._resource_tracker
    tracker._fd = tracker._pid = None


def wait_for_threads() -> None:
    """As the interpreter does at its end: threads that are no daemons, and the workers of concurrent.futures."""
    threading._shutdown()  # type: ignore[attr-defined]


def run_exit_handlers() -> None:
    """What was registered with ``atexit``, the last first."""
    atexit._run_exitfuncs()


def open_descriptors() -> set[int]:
    found = {int(name) for name in os.listdir("/proc/self/fd")}
    return {number for number in found if os.path.exists(f"/proc/self/fd/{number}")}  # not the list's own
