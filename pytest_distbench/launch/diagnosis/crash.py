"""What a rank's log holds when a signal has ended it: the exception of C++ that nobody caught, and its Python stacks.

C++ writes the exception before it aborts, and Python's faulthandler the stacks behind it, at any signal that kills for
an error. They are longer than what a failure shows of a log, and end with frames of ours.
"""

from __future__ import annotations

import re
from pathlib import Path

from pytest_distbench.launch.logs import find_line

_UNCAUGHT = re.compile(rb"terminate called after throwing an instance of")
_EXCEPTION = re.compile(r"instance of '(?P<kind>.+)'\n\s*what\(\):\s+(?P<what>.*)")
_WHERE_IN_C = re.compile(r"^\[enforce fail at \S+\] ")
_DUMP = re.compile(rb"Fatal Python error: ")
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x", re.MULTILINE)
_BEHIND = re.compile(r"^(?:Extension modules:|Current thread's C stack)", re.MULTILINE)
_DUMP_LINES = 2_000


def read_uncaught(log: Path) -> tuple[str, str] | None:
    """The class of the exception, and the first line of what it says; None: none has ended the rank."""
    found = _EXCEPTION.search(find_line(log, _UNCAUGHT, following=1))
    return found and (found["kind"], _WHERE_IN_C.sub("", found["what"].strip()))


def read_dump(log: Path) -> str:
    """The Python stacks of all threads; empty: there are none."""
    dump = find_line(log, _DUMP, following=_DUMP_LINES)
    first = _THREAD.search(dump)
    return _BEHIND.split(dump[first.start() :], maxsplit=1)[0].rstrip() if first else ""


def before_dump(text: str) -> str:
    """The lines of a log above the stacks."""
    return text.partition(_DUMP.pattern.decode())[0].rstrip()
