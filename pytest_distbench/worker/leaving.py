"""How a rank leaves: its threads and exit handlers run as in any Python process, and have a limit."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import itertools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType, FunctionType, ModuleType

from pytest_distbench.worker import preloaded
from pytest_distbench.worker.python_internals import (
    TEMPORARY_FILE,
    run_exit_handlers,
    wait_for_threads,
)

LEAVING_S = 10.0
"""How long threads and exit handlers may take: less than pytest gives the ranks to end."""

_MOST_THREADS = 4
_MOST_OBJECTS = 20_000
_MOST_HELD = 1_000
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_NO_HOLDERS = (str, bytes, int, float, type, ModuleType, FunctionType)
"""What holds no file of the user, or leads to everything there is."""


def leave(tell: Callable[[str], None]) -> None:
    """Wait for this process's threads and run what was registered with ``atexit``, in Python's order.

    Args:
        tell: told what was still going on after :data:`LEAVING_S`; then the process ends, with exit code 0.
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
    """Write out the files that the user's modules hold, and remove their named temporary ones.

    The interpreter would do so when it is finalised, which is left out. Files are looked for in the modules' globals,
    then in what these hold, and so on, as far as that takes milliseconds. Nothing is asked of an object that is no
    file: its class may do anything then, such as to load what it stands for.
    """
    holders: deque[object] = deque(vars(module) for module in _newer_modules() if _is_users(module))
    seen: set[int] = set()
    while holders and len(seen) < _MOST_OBJECTS:
        holder = holders.popleft()
        if type(holder) in _CONTAINERS and len(holder) > _MOST_HELD:  # type: ignore[arg-type] # these have a length
            continue  # data, not files
        for held in gc.get_referents(holder):
            kind = type(held)
            if id(held) in seen or issubclass(kind, _NO_HOLDERS):
                continue
            seen.add(id(held))
            holders.append(held)
            with contextlib.suppress(Exception):  # closed, or its disk is full
                if issubclass(kind, TEMPORARY_FILE):
                    held.close()
                elif issubclass(kind, io.IOBase) and held.writable():
                    held.flush()


def _newer_modules() -> Iterator[object]:
    """Modules that may be the user's: the script, and all that torch and we had not loaded before this process began.

    To touch each of torch's two thousand copies their pages into a forked process. No other thread can import
    meanwhile, for no Python is run until the names are a list.
    """
    is_newer = "".join(preloaded.LAST_BEFORE).__ne__
    for name in ["__main__", *itertools.takewhile(is_newer, reversed(sys.modules))]:
        yield sys.modules.get(name)


def _is_users(module: object) -> bool:
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not isinstance(module, ModuleType):
        return False
    return not file.startswith((sys.base_prefix, os.path.dirname(os.path.dirname(__file__)))) and (
        "site-packages" not in file
    )


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
