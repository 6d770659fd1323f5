"""What ranks print: read from their logs, so that nothing stands between them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path

from pytest_distbench.records.launch_files import open_left
from pytest_distbench.records.plan import LaunchPlan

TAIL_LINES = 30
"""As much of a log as a failure shows."""

_READ_BYTES = 2**20
_LONGEST_LINE_BYTES = 2**16
_TAIL_BYTES = 64 * 1024
_SEARCHED_BYTES = 64 * 2**20
_TRACEBACK = "Traceback (most recent call last):"
_MEANS_NOTHING = re.compile(r"\[W\S* [\d:.]* socket\.cpp:\d+\] \[c10d\] The hostname of the client socket cannot be")
"""torch asks for the name of whoever connects, for its logs: in a network without DNS there is none, and no harm."""
_LINE_END = re.compile(rb"\r\n|\n|\r")


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log of any size; empty where there is none. What means nothing is not among them."""
    try:
        with open_left(path) as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join([line for line in text.splitlines() if not _MEANS_NOTHING.match(line)][-lines:])


def error_tail(path: Path) -> str:
    """The last lines of a log; where the first Python traceback lies above them, half are the end of that.

    A launcher that reports at length how its processes ended has pushed away what they said themselves.
    """
    lines = tail(path, lines=_TAIL_BYTES).splitlines()
    begin = next((i for i, line in enumerate(lines) if line.endswith(_TRACEBACK)), len(lines))
    if begin >= len(lines) - TAIL_LINES:
        return "\n".join(lines[-TAIL_LINES:])
    prefix = lines[begin].removesuffix(_TRACEBACK)  # such as "[rank0]: "
    block = [line for line in lines[begin + 1 :] if line.startswith(prefix)]
    end = next((i for i, line in enumerate(block) if not line.removeprefix(prefix).startswith(" ")), len(block))
    shown = [lines[begin], *block[: end + 1][-(TAIL_LINES // 2) :], "..."]
    return "\n".join([*shown, *lines[-(TAIL_LINES - len(shown)) :]])


def find_line(path: Path, pattern: re.Pattern[bytes], *, following: int) -> str:
    """The first line of a log, and some that follow it, from where a pattern is found on; empty: nowhere.

    Searched are the log's last 64 MiB.
    """
    with contextlib.suppress(OSError), open_left(path) as file:
        file.seek(max(0, file.seek(0, 2) - _SEARCHED_BYTES))
        data = file.read(_SEARCHED_BYTES)
        if found := pattern.search(data):
            end = found.start()
            for _ in range(1 + following):
                end = data.find(b"\n", end) + 1 or len(data)
            return data[found.start() : end].decode(errors="replace")
    return ""


class LogFollower:
    """Reads the logs of one launch as they grow; each line is passed on with the number of what has printed it."""

    def __init__(self, plan: LaunchPlan, on_line: Callable[[int, str], None]) -> None:
        self._logs = plan.work.logs(plan.files, plan.world_size)
        self._read: dict[Path, int] = dict.fromkeys((path for _, path in self._logs), 0)
        self._rest: dict[Path, bytes] = dict.fromkeys(self._read, b"")
        self._on_line = on_line

    def poll(self) -> None:
        """Hand over the lines that have come since the last call."""
        for number, path in self._logs:
            self._take(number, path)

    def finish(self) -> None:
        """Hand over all that is left, an unfinished last line included."""
        for number, path in self._logs:
            while self._take(number, path):
                pass
            if self._rest[path]:
                self._on_line(number, self._rest[path].decode(errors="replace"))

    def _take(self, number: int, path: Path) -> bool:
        data = b""
        with contextlib.suppress(OSError), open_left(path) as file:
            file.seek(self._read[path])
            data = file.read(_READ_BYTES)
        self._read[path] += len(data)
        *lines, self._rest[path] = _LINE_END.split(self._rest[path] + data)
        if len(self._rest[path]) > _LONGEST_LINE_BYTES:  # searched again for its end with every read
            lines.append(self._rest[path])
            self._rest[path] = b""
        for line in lines:
            self._on_line(number, line.decode(errors="replace"))
        return bool(data)
