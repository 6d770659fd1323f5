"""How a rank ends: its report of the exception that ended it, and its exit, within a time limit."""

from __future__ import annotations

import ast
import contextlib
import ctypes
import dis
import gc
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType

import torch

from pytest_distbench.errors import BodyError
from pytest_distbench.records.launch import ErrorReport, Outcome
from pytest_distbench.records.record import replace
from pytest_distbench.records.wire import XFAILED
from pytest_distbench.units import and_more
from pytest_distbench.worker import bodies
from pytest_distbench.worker.clock import HostClock
from pytest_distbench.worker.forked import FILE, TEMPORARY_FILE, run_exit_handlers, wait_for_threads
from pytest_distbench.worker.torch_internals import skips_of_torchs_tests

_MACHINERY = (contextlib.__file__, ast.__file__)
_REWRITING = "/_pytest/assertion/"  # frames in these files stand between ours and the user's

_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3|^<")

_LONGEST_TEXT = 8_000
_TORCH = f"{Path(torch.__file__).parent}/"
_LONGEST_CHAIN = 100  # a class may invent causes of causes without end


def classify(raised: BaseException) -> tuple[Outcome, str, ErrorReport]:
    """Distinguish a skip or xfail (of pytest or unittest, neither imported here) from a failure, and report it."""
    try:
        return _classify(raised)
    except BaseException:  # noqa: BLE001 builtins that the body has replaced, and what else nobody thought of
        text = "its report could not be made"
        error = ErrorReport(kind="an exception", message=text, traceback=text, raised_at=HostClock.monotonic())
        return "failed", "", error


def _classify(raised: BaseException) -> tuple[Outcome, str, ErrorReport]:
    kind, module = type(raised).__name__, type(raised).__module__
    reason = ""
    if isinstance(raised, SystemExit) and type(raised.code) is int:
        # A test of torch's own that is skipped ends a rank with an exit code of torch's table. A body that has not
        # imported that table means another thing by such a code.
        reason = skips_of_torchs_tests().get(raised.code, "")
    is_skip = kind in ("Skipped", "SkipTest", XFAILED) and module in ("builtins", "_pytest.outcomes", "unittest.case")
    skipped = is_skip or bool(reason)
    chain = _chain(raised)
    # A ``finally`` that meets a collective raises on top of what went wrong: that is what counts.
    root = chain[-1] if _is_torchs(raised) and not _is_torchs(chain[-1]) else raised
    text = _text_of(root)
    frames = user_frames(raised)
    try:
        trace = "".join(traceback.format_exception(type(raised), raised, frames))
    except Exception:  # noqa: BLE001 a class that does not let itself be printed, or causes of causes without end
        trace = "".join([*traceback.format_tb(frames), f"{describe(raised)}\n"])
    with contextlib.suppress(BaseException):  # a full disk, a stream the body has closed or replaced
        sys.stderr.write(trace)
    report = ErrorReport(
        kind=type(root).__name__,
        message=_cut(reason or text),
        traceback=_cut(trace),
        raised_at=HostClock.monotonic(),
        torch_errors=[describe(e) for e in chain if _is_torchs(e)],
        began_in_torch=_is_torchs(chain[-1]),
    )
    return ("skipped" if skipped else "failed"), _cut(reason or text) if skipped else "", report


def without_values(raised: BaseException, error: ErrorReport) -> tuple[Outcome, ErrorReport]:
    """Outcome and report of an exception on the backend ``fake``, where a rank receives no data.

    An assert of the user's is about values: a skip. Anything else fails, also a library's assert, with a note on the
    missing data.
    """
    said, _, rest = error.message.partition("\n")
    trace = _innermost(raised)
    is_users = trace is not None and not _LIBRARY.search(trace.tb_frame.f_code.co_filename)
    if is_users and isinstance(raised, AssertionError):
        message = f"not run: needs values, and the backend fake has none: {said or 'an assert'}"
        return "skipped", replace(error, message=message)
    message = f"{said} (the backend fake transfers no data; does the body need what it received?)"
    return "failed", replace(error, message=f"{message}\n{rest}".rstrip(), torch_errors=[])


def describe(raised: BaseException) -> str:
    return _cut(f"{type(raised).__name__}: {_text_of(raised)}")


def _chain(raised: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    before: BaseException | None = raised
    # by identity: equality is the class's own
    while before is not None and len(found) < _LONGEST_CHAIN and all(before is not one for one in found):
        found.append(before)
        before = before.__cause__ if before.__cause__ is not None else before.__context__  # not "or": that asks it
    return found


def _is_torchs(raised: BaseException) -> bool:
    """Whether torch raised it: by its class, or by its place, in torch's Python or in C++ at the user's line."""
    trace = _innermost(raised)
    if str(type(raised).__module__).partition(".")[0] == "torch":
        return True
    if trace is None:
        return False
    is_from_c = trace.tb_frame.f_code.co_code[trace.tb_lasti] != dis.opmap["RAISE_VARARGS"]
    return trace.tb_frame.f_code.co_filename.startswith(_TORCH) or (type(raised) is RuntimeError and is_from_c)


def _innermost(raised: BaseException) -> TracebackType | None:
    trace = raised.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace


def _text_of(raised: BaseException) -> str:
    if isinstance(raised, SystemExit) and not raised.code:
        return (
            f"{raised.code}: a body returns when it is done; a script that exits is run with distbench.run('script.py')"
        )
    try:
        return str(raised)
    except BaseException as broken:  # noqa: BLE001 an exception whose __str__ raises must not hide the failure
        return f"<{type(raised).__name__} whose text cannot be made: {type(broken).__name__}>"


def _cut(text: str) -> str:
    text = text.encode(errors="backslashreplace").decode()  # half a surrogate pair has no place in a file
    if len(text) <= _LONGEST_TEXT:
        return text
    half = _LONGEST_TEXT // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def user_frames(raised: BaseException) -> TracebackType | None:
    """The traceback from the body's first frame, or None if there is none or its file cannot be compiled."""
    trace, found = raised.__traceback__, None
    here = str(Path(__file__).parent)
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name == bodies.__file__:
            found = None  # whatever is before it has called the body
        elif found is None and not name.startswith((here, "<frozen ", *_MACHINERY)) and _REWRITING not in name:
            found = trace
        trace = trace.tb_next
    return found or (None if isinstance(raised, SyntaxError | BodyError) else raised.__traceback__)


LEAVING_S = 10.0  # how long threads and exit handlers may take: less than pytest gives the ranks to end

_MOST_THREADS = 4


def leave(report: Callable[[str], None]) -> None:
    """Wait for this process's threads and run its exit handlers, in Python's order.

    After :data:`LEAVING_S`, ``report`` is called with what still runs, and the process ends with exit code 0.
    """
    threads_ended, done = threading.Event(), threading.Event()
    threading.Thread(target=_give_up, args=(threads_ended, done, report), name="distbench-leaving", daemon=True).start()
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
    """Flush the buffers of Python and C, which a rank that ends without finalisation would lose."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):  # closed or replaced by the body
            stream.flush()
    ctypes.CDLL(None).fflush(None)


def _give_up(threads_ended: threading.Event, done: threading.Event, report: Callable[[str], None]) -> None:
    if done.wait(LEAVING_S):
        return
    frames, main = sys._current_frames(), threading.main_thread()
    if threads_ended.is_set():
        what = f"its exit handlers were not done{_place(frames.get(main.ident or 0))}"
    else:
        threads = [t for t in threading.enumerate() if t is not main and not t.daemon]
        named = [f"{t.name}{_place(frames.get(t.ident or 0))}" for t in threads]
        what = f"threads it had started still ran ({and_more(named, shown=_MOST_THREADS)})"
    report(f"{what} after {LEAVING_S:.0f} s, and were ended")
    with contextlib.suppress(BaseException):
        _finish_files()
    flush_output()
    os._exit(0)


def _finish_files() -> None:
    """Flush the open files of this process, and remove its named temporary ones, as finalisation would.

    Objects of the parent are frozen and not found here. Other objects are not touched, as their class may do anything.
    """
    kinds = {id(kind): kind for kind in map(type, gc.get_objects())}.values()  # a class may have a hash of its own
    files = {id(kind) for kind in kinds if issubclass(kind, (FILE, TEMPORARY_FILE))}
    for held in [held for held in gc.get_objects() if id(type(held)) in files]:
        with contextlib.suppress(Exception):  # closed, or its disk is full
            if isinstance(held, TEMPORARY_FILE):
                held.close()
            elif held.writable():
                held.flush()


def _place(frame: FrameType | None) -> str:
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(("<", sys.base_prefix, os.path.dirname(os.path.dirname(__file__)))):
            return f", at {os.path.basename(name)}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return ""
