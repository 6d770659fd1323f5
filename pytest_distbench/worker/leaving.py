"""How a rank leaves: its threads and exit handlers run as in any Python process, and have a limit."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from pytest_distbench.worker.python_internals import (
    TEMPORARY_FILE,
    run_exit_handlers,
    wait_for_threads,
)

LEAVING_S = 10.0
"""How long threads and exit handlers may take: less than pytest gives the ranks to end."""

_MOST_THREADS = 4


def leave(tell: Callable[[str], None]) -> None:
    """Wait for this process's threads and run what was registered with ``atexit``, in Python's order.

    ``tell`` is told what was still going on after :data:`LEAVING_S`; then the process ends, with exit code 0.
    """
    threads_ended, done = threading.Event(), threading.Event()
    threading.Thread(target=_give_up, args=(threads_ended, done, tell), name="distbench-leaving", daemon=True).start()
    with contextlib.suppress(BaseException):  # Python prints it and goes on to its end, too
        wait_for_threads()
    threads_ended.set()
    with contextlib.suppress(BaseException):
        run_exit_handlers()
    with contextlib.suppress(BaseException):
        _finish_files()
    done.set()
    flush_output()


def flush_output() -> None:
    """Ranks end without finalising: what Python and C still hold would be lost."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):  # closed or replaced by the body
            stream.flush()
    ctypes.CDLL(None).fflush(None)


def _give_up(threads_ended: threading.Event, done: threading.Event, tell: Callable[[str], None]) -> None:
    if done.wait(LEAVING_S):
        return
    tell(f"{_what_goes_on(threads_ended=threads_ended.is_set())} after {LEAVING_S:.0f} s, and were ended")
    with contextlib.suppress(BaseException):
        _finish_files()
    flush_output()
    os._exit(0)


def _finish_files() -> None:
    """Write out the files that this process has opened and still holds, and remove its named temporary ones.

    The interpreter would do so when it is finalised, which is left out. What was there before the rank began is frozen,
    and not among the objects. Nothing is asked of one that is no file: its class may do anything then.
    """
    for held in [held for held in gc.get_objects() if issubclass(type(held), (io.IOBase, TEMPORARY_FILE))]:
        with contextlib.suppress(Exception):  # closed, or its disk is full
            if isinstance(held, TEMPORARY_FILE):
                held.close()
            elif held.writable():
                held.flush()


def _what_goes_on(*, threads_ended: bool) -> str:
    """The threads that nobody ends, or the line that an exit handler is at."""
    frames = sys._current_frames()
    main = threading.main_thread()
    if threads_ended:
        return f"its exit handlers were not done{_place(frames.get(main.ident or 0))}"
    threads = [t for t in threading.enumerate() if t is not main and not t.daemon]
    named = [f"{t.name}{_place(frames.get(t.ident or 0))}" for t in threads[:_MOST_THREADS]]
    more = f" and {len(threads) - _MOST_THREADS} more" if len(threads) > _MOST_THREADS else ""
    return f"threads it had started still ran ({', '.join(named)}{more})"


def _place(frame: FrameType | None) -> str:
    """Where a thread is, as far as that is no code of ours or of Python's."""
    for f in _stack(frame):
        name = f.f_code.co_filename
        if not name.startswith(("<", sys.base_prefix, os.path.dirname(os.path.dirname(__file__)))):
            return f", at {os.path.basename(name)}:{f.f_lineno} in {f.f_code.co_name}"
    return ""


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    """From the innermost frame outwards."""
    while frame is not None:
        yield frame
        frame = frame.f_back
