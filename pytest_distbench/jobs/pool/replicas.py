"""The processes of a pool's serving: replicas that answer, and one that sends requests."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from pytest_distbench.launch.logs import tail
from pytest_distbench.records.launch_files import LaunchFiles


class Replicas(Protocol):
    """What serves in a pool."""

    def begin(self) -> None:
        """Begin to send requests as the demand says. Returns at once."""

    def start(self, slot: int) -> None:
        """Start a replica. Returns at once."""

    def stop(self, slot: int) -> None:
        """Ask one to go. Returns at once."""

    def poll(self) -> dict[int, int]:
        """Slot -> exit code of the replicas that have ended since the last call; -1 is what sends requests."""

    def log(self, slot: int) -> str:
        """The last lines of what it printed."""

    def close(self) -> None:
        """End all of it."""


LOAD = -1
"""In the place of a slot: what sends requests."""

_END_S = 5.0


class ReplicaProcesses:
    """Replicas that are processes of this host."""

    def __init__(self, files: LaunchFiles, *, variables: Mapping[str, str]) -> None:
        self._files = files
        self._variables = dict(variables)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def begin(self) -> None:
        self._spawn(LOAD, "pytest_distbench.jobs.pool.load", str(self._files.plan))

    def start(self, slot: int) -> None:
        self._spawn(slot, "pytest_distbench.workloads.serving", str(self._files.plan), str(slot))

    def stop(self, slot: int) -> None:
        self._processes[slot].send_signal(signal.SIGTERM)

    def poll(self) -> dict[int, int]:
        ended = {slot: code for slot, process in self._processes.items() if (code := process.poll()) is not None}
        for slot in ended:
            del self._processes[slot]
        return ended

    def log(self, slot: int) -> str:
        return tail(self._log(slot))

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_END_S)

    def _log(self, slot: int) -> Path:
        return self._files.load_log if slot == LOAD else self._files.serving_log(slot)

    def _spawn(self, slot: int, *command: str) -> None:
        with open(self._log(slot), "ab") as log:
            self._processes[slot] = subprocess.Popen(
                [sys.executable, "-m", *command],
                env=self._variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
