"""Throttle: stops all that a process has started, and lets it go on, again and again: a slowdown that is planted."""

from __future__ import annotations

import contextlib
import threading
import time

import psutil

CYCLE_S = 0.02
"""Of going on and standing still. No number of a program is to end within one."""
_LOOK_S = 0.2
"""How often it is looked for new processes, which goes through all that there are."""


class Throttle:
    """Makes whatever runs below this process take longer by a share, until it is closed.

    For each second that it goes on it stands still for so many: what a cycle misses the next one makes up for. This
    process itself goes on, so that it can end the others at any time.
    """

    def __init__(self, share: float) -> None:
        self.stopped_s = 0.0
        self._share = share
        self._is_over = threading.Event()
        self._below: list[psutil.Process] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        if share:
            self._thread.start()

    def close(self) -> None:
        """Let all of it go on."""
        self._is_over.set()
        if self._share:
            self._thread.join()

    def _run(self) -> None:
        looked_at = float("-inf")
        owed_s, went_on_at = 0.0, time.monotonic()
        while not self._is_over.wait(CYCLE_S / (1 + self._share)):
            if time.monotonic() - looked_at > _LOOK_S:
                self._below, looked_at = psutil.Process().children(recursive=True), time.monotonic()
            self._send("suspend")
            stopped_at = time.monotonic()
            owed_s += self._share * (stopped_at - went_on_at)
            self._is_over.wait(max(0.0, owed_s))
            self._send("resume")
            went_on_at = time.monotonic()
            owed_s -= went_on_at - stopped_at
            self.stopped_s += went_on_at - stopped_at

    def _send(self, what: str) -> None:
        for process in self._below:
            with contextlib.suppress(psutil.Error):
                getattr(process, what)()
