"""A process that somebody has stopped (SIGSTOP), and that others wait for: it is told, and not waited for long."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

import psutil

from pytest_distbench.launch.site import processes

LOOK_S = 1.0
STOPPED_S = 5.0
"""How long a process may stand still. One that is sent SIGCONT at once has only been looked at."""


class Standstill:
    """Looks at processes that somebody waits for. What it has said is kept in ``told``."""

    def __init__(self) -> None:
        self.told = ""
        self._since: dict[int, float] = {}

    def look(self, pids: Iterable[int]) -> str:
        """What there is to say of one that has stood still for too long; empty: nothing."""
        now = time.monotonic()
        self._since = {pid: self._since.get(pid, now) for pid in pids if processes.is_stopped(pid)}
        stopped = next((pid for pid, since in self._since.items() if now - since >= STOPPED_S), None)
        if stopped is None:
            return ""
        self.told = (
            f"the process {stopped}, which starts the others and waits for them, has been stopped (SIGSTOP) and did "
            f"not go on within {STOPPED_S:g} s, and was ended; who stops one on purpose lets it go on with kill -CONT"
        )
        return self.told


def below_guardian(guardian: int) -> list[int]:
    """Process ids of a guardian and of what it runs, which is the oldest of its children: the others are orphans."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(guardian)
        children = sorted(process.children(), key=psutil.Process.create_time)
        return [guardian, *(child.pid for child in children[:1])]
    return []
