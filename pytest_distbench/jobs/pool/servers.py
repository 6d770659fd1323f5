"""The processes of a pool's serving: servers, each of which has a slot."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Protocol

from pytest_distbench.launch.workplace import tail
from pytest_distbench.records.launch_files import LaunchFiles


class Servers(Protocol):
    """What serves in a pool."""

    def start(self, slot: int) -> None:
        """Start a server. Returns at once."""

    def stop(self, slot: int) -> None:
        """Ask one to go. Returns at once."""

    def poll(self) -> dict[int, int]:
        """Slot -> exit code of the servers that have ended since the last call."""

    def log(self, slot: int) -> str:
        """The last lines of what it printed."""

    def close(self) -> None:
        """End all of them."""


_END_S = 5.0


class ServerProcesses:
    def __init__(self, files: LaunchFiles, *, variables: Mapping[str, str]) -> None:
        self._files = files
        self._variables = dict(variables)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, slot: int) -> None:
        with open(self._files.serving_log(slot), "ab") as log:
            self._processes[slot] = subprocess.Popen(
                [sys.executable, "-u", "-m", "pytest_distbench.worker.serving", str(self._files.plan), str(slot)],
                env=self._variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self, slot: int) -> None:
        self._processes[slot].send_signal(signal.SIGTERM)

    def poll(self) -> dict[int, int]:
        ended = {slot: code for slot, process in self._processes.items() if (code := process.poll()) is not None}
        for slot in ended:
            del self._processes[slot]
        return ended

    def log(self, slot: int) -> str:
        return tail(self._files.serving_log(slot))

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_END_S)
