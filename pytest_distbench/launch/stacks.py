"""Reading what faulthandler wrote: the stacks of a hung rank, without our own frames, and the line it waits at."""

from __future__ import annotations

import re

_LIFELINE = "_die_with_pytest"
_OUR_ENTRY = re.compile(r'worker/main\.py", line \d+ in _measure')
_LIBRARY = re.compile(r"/site-packages/|/pytest_distbench/|/lib/python3")
_FRAME = re.compile(r'File "(.+)", line (\d+) in (\S+)')


def trimmed(text: str) -> str:
    """The threads of the last dump that are the user's, each cut where our code called theirs."""
    threads = []
    for block in re.split(r"\n\s*\n", text.strip()):
        if _LIFELINE in block:
            continue
        lines = block.splitlines()
        cut = next((i for i, line in enumerate(lines) if _OUR_ENTRY.search(line)), len(lines))
        threads.append("\n".join(lines[:cut]))
    return "\n\n".join(threads)


def waits_at(text: str) -> str:
    """The innermost user frame as ``file.py:7 in function``, and what it called; empty if unknown."""
    frames = _FRAME.findall(trimmed(text).rpartition("Current thread")[2])
    for i, (file, line, function) in enumerate(frames):
        if not _LIBRARY.search(file):
            called = f", in {frames[i - 1][2]}" if i else ""
            return f"{file.rpartition('/')[2]}:{line} in {function}{called}"
    return ""
