"""The ranks of a launch that live on this host, as children of this process."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Protocol

import psutil

from pytest_distbench.launch.site import processes
from pytest_distbench.launch.site.contract import Exit
from pytest_distbench.records.plan import LaunchPlan


class RankProcess(Protocol):
    """A child of this process, as ``Popen`` has it."""

    pid: int

    def poll(self) -> int | None:
        """Its exit code, or minus the signal's number; None: it runs."""


StartRank = Callable[[LaunchPlan, int, Mapping[str, str]], RankProcess]
"""Starts a rank of a stored plan, with the variables that tell it its place."""


class ChildRanks:
    """Starts the ranks that have a place here, and waits for them.

    Args:
        places: rank -> the variables by which torchrun would tell it its place.
        start_rank: how one is started.
    """

    def __init__(self, places: Mapping[int, Mapping[str, str]], start_rank: StartRank) -> None:
        self._places = places
        self._start_rank = start_rank
        self._started: dict[int, RankProcess] = {}
        self._selector = selectors.EpollSelector()

    def start(self, plan: LaunchPlan) -> ChildRanks:
        for rank, place in self._places.items():
            self._started[rank] = process = self._start_rank(plan, rank, place)
            self._selector.register(os.pidfd_open(process.pid), selectors.EVENT_READ)
        return self

    def fileno(self) -> int:
        return self._selector.fileno()

    def poll(self) -> Exit | None:
        for key, _ in self._selector.select(0):
            self._selector.unregister(key.fd)
            os.close(key.fd)
        codes = {rank: process.poll() for rank, process in self._started.items()}
        known = {rank: code for rank, code in codes.items() if code is not None}
        return Exit(codes=known) if len(known) == len(codes) else None

    def pids(self) -> dict[int, int]:
        return {rank: process.pid for rank, process in self._started.items() if process.poll() is None}

    def drivers(self) -> list[int]:
        """This process is their parent."""
        return []

    def abandon(self) -> None:
        processes.kill_descendants()

    def leftovers(self) -> list[psutil.Process]:
        return psutil.Process().children(recursive=True)


def start_interpreter(plan: LaunchPlan, rank: int, place: Mapping[str, str]) -> RankProcess:
    """Start a rank as a Python of its own."""
    path = os.pathsep.join(p for p in plan.python_path if p)
    with open(plan.files.log(rank), "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "pytest_distbench.worker", "rank", str(plan.files.plan)],
            env={**plan.variables, "PYTHONPATH": path, **place},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
