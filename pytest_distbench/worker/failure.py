"""What a rank says of the exception that ended it: its kind, its text, and where it began."""

from __future__ import annotations

import ast
import contextlib
import runpy
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType

from pytest_distbench.records.rank import ErrorReport, Outcome
from pytest_distbench.records.wire import XFAILED

_MACHINERY = (contextlib.__file__, runpy.__file__, ast.__file__)
_REWRITING = "/_pytest/assertion/"
"""Frames in these files stand between ours and the user's."""

_LONGEST_TEXT = 8_000


def classify(raised: BaseException) -> tuple[Outcome, str, ErrorReport]:
    """Tell a skip or xfail (of pytest or unittest, neither imported here) from a failure."""
    kind = type(raised)
    skipped = kind.__name__ in ("Skipped", "SkipTest", XFAILED) and kind.__module__ in (
        "builtins",
        "_pytest.outcomes",
        "unittest.case",
    )
    chain = _chain(raised)
    # A ``finally`` that meets a collective raises on top of what went wrong: that is what must be told.
    told = chain[-1] if _is_torchs(raised) and not _is_torchs(chain[-1]) else raised
    text = _text_of(told)
    trace = "".join(traceback.format_exception(kind, raised, user_frames(raised)))
    with contextlib.suppress(Exception):  # a full disk, a stream the body has closed
        sys.stderr.write(trace)
    report = ErrorReport(
        kind=type(told).__name__,
        message=_cut(text),
        traceback=_cut(trace),
        raised_at=time.monotonic(),
        torch_errors=[_cut(f"{type(e).__name__}: {_text_of(e)}") for e in chain if _is_torchs(e)],
        began_in_torch=_is_torchs(chain[-1]),
    )
    return ("skipped" if skipped else "failed"), _cut(text) if skipped else "", report


def _chain(raised: BaseException) -> list[BaseException]:
    """An exception, what it came from, and so on to the first."""
    found = [raised]
    while (before := found[-1].__cause__ or found[-1].__context__) is not None and before not in found:
        found.append(before)
    return found


def _is_torchs(raised: BaseException) -> bool:
    """Whether torch raised it: by its class, or by the file it was raised in."""
    trace, file = raised.__traceback__, ""
    while trace is not None:
        file, trace = trace.tb_frame.f_code.co_filename, trace.tb_next
    return type(raised).__module__.partition(".")[0] == "torch" or "/torch/" in file


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
    """The traceback from the first frame that is not ours; none for a body's file that could not even be compiled."""
    trace = raised.__traceback__
    here = str(Path(__file__).parent)
    first = trace
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith((here, "<frozen ", *_MACHINERY)) and _REWRITING not in name:
            return trace
        trace = trace.tb_next
    return None if isinstance(raised, SyntaxError) else first
