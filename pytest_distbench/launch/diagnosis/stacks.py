"""What the Python stacks of a rank say: the user's frames, and the line it waits at.

A rank's dump is faulthandler's text. Our own functions in it are known by the file and name they have in the worker.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path


def _frames_in(**functions: str) -> re.Pattern[str]:
    """Lines of a dump that name one of these functions, by the worker's module they are in."""
    each = (rf'{module}\.py", line \d+ in (?:{names})' for module, names in functions.items())
    return re.compile(rf"pytest_distbench/worker/(?:{'|'.join(each)})$", re.MULTILINE)


def _folder_of(package: str) -> str:
    """Where a package is imported from: one that was built in its checkout is not among the others."""
    spec = importlib.util.find_spec(package)
    return str(Path(spec.origin).parent) if spec is not None and spec.origin else f"/no {package} here"


_LIFELINE = "_die_with_pytest"
_AT_WORK = _frames_in(main="_measure", membership="join_group|leave_group")
_ENTRY = _frames_in(
    main="_measure|run|_end", bodies="call", script="run_script", membership="join_group|leave_group", leaving="leave"
)
_OUTERMOST = _frames_in(main="run_rank|_end")
"""Our frame at the bottom of the main thread, which comes last: a dump that shows it is whole."""
_OURS = r"/pytest_distbench/(?:jobs|launch|testing|worker|workloads|instruments\.py)"
"""This package, and not a checkout that is called so."""
_LIBRARY = re.compile(rf"/site-packages/|{_OURS}|/lib/python3|^<")
_PACKAGE = re.compile(r"^(.*/site-packages/[^/]+)")
_WAITS = re.compile(rf"/(?:site|dist)-packages/torch/|{re.escape(_folder_of('torch'))}/|{_OURS}")
_LOGGING_WRAPPER = "wrapper"  # around every collective in torch
_FRAME = re.compile(r'File "(.+)", line (\d+) in (\S+)')
_TRACED = re.compile(r'File "(.+)", line (\d+), in (\S+)')
_NEXT_DUMP = re.compile(r"(?<=\S\n)(?=(?:Current thread|Thread|Stack) )")
"""Threads of one dump are separated by an empty line, dumps by nothing."""


def trim(text: str) -> str:
    """The threads of the last dump that are the user's, each cut where our code called theirs."""
    threads = []
    for block in re.split(r"\n\s*\n", _last_dump(text).strip()):
        if _LIFELINE in block:
            continue
        lines = block.splitlines()
        cut = next((i for i, line in enumerate(lines) if _ENTRY.search(line)), len(lines))
        threads.append("\n".join(lines[:cut] if cut > 1 else lines))
    return "\n\n".join(threads)


def waits_at(text: str) -> str:
    """The main thread's innermost user frame as ``file.py:7 in function``, and what it called; empty if unknown."""
    called, (file, line, function) = _innermost(text)
    if not file:
        return ""
    within = next((f", in {name}" for _, _, name in reversed(called) if name != _LOGGING_WRAPPER), "")
    return f"{file.rpartition('/')[2]}:{line} in {function}{within}"


def raised_at(traceback: str) -> str:
    """The same of the last traceback in a text."""
    frames = _TRACED.findall(traceback[traceback.rfind("Traceback (most recent call last)") :])
    return waits_at("\n".join(f'  File "{file}", line {line} in {name}' for file, line, name in reversed(frames)))


def is_in_own_code(text: str) -> bool:
    """Whether the main thread's innermost user frame has called neither torch nor us, which wait for others."""
    called, (file, _, _) = _innermost(text)
    return bool(file) and not any(_WAITS.search(library) for library, _, _ in called)


def is_whole(text: str) -> bool:
    """Whether a text holds a whole dump. One of over 100 frames is cut and never looks whole."""
    return _OUTERMOST.search(text) is not None


def _innermost(text: str) -> tuple[list[tuple[str, str, str]], tuple[str, str, str]]:
    """The main thread's innermost user frame, and before it the frames of what it called, innermost first."""
    blocks = re.split(r"\n\s*\n", _last_dump(text).strip())
    main = next((block for block in blocks if _ENTRY.search(block)), blocks[-1])
    frames = _FRAME.findall(main)
    is_users = _by_package(main) if all(_LIBRARY.search(file) for file, _, _ in frames) else _is_no_library
    first = next((i for i, (file, _, _) in enumerate(frames) if is_users(file)), None)
    return (frames, ("", "", "")) if first is None else (frames[:first], frames[first])


def _is_no_library(file: str) -> bool:
    return _LIBRARY.search(file) is None


def _by_package(main: str) -> Callable[[str], bool]:
    """For a body or script that is installed as libraries are: what is in the package that our code called."""
    entry = _ENTRY.search(main)
    files = [file for file, _, _ in _FRAME.findall(main[: entry.start()] if entry else "")]
    outermost = next((file for file in reversed(files) if not re.search(_OURS, file)), "")
    package = _PACKAGE.search(outermost)
    return lambda file: package is not None and (file == package[1] or file.startswith(f"{package[1]}/"))


def _last_dump(text: str) -> str:
    """The last whole one of a rank at work, else the last whole one.

    The elastic agent may ask a rank once more while we end it: it is left half an answer, or answers from where it
    reports that a peer is gone, which is not where it waited.
    """
    dumps = _NEXT_DUMP.split(text)
    whole = [dump for dump in dumps if is_whole(dump)] or dumps[-1:]
    return next((dump for dump in reversed(whole) if _AT_WORK.search(dump)), whole[-1])
