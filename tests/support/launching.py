"""Running one launch in a test, without a pytest run around it."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_distbench.launch.site import processes
from pytest_distbench.launch.starters import LAUNCHERS, Launcher
from pytest_distbench.launch.supervise import Side, supervise
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.plan import BodyReference, LaunchPlan, Ranks
from pytest_distbench.records.wire import SESSION_VARIABLE
from support.processes import EXIT_S, wait_for, working_in

MadeLauncher = Callable[..., Launcher]
"""Gives the launcher of a name, and of a side, that this process has made."""
RunInside = Callable[..., pytest.RunResult]
"""Runs pytest with real ranks, inside this process."""


def left_of(launcher: Launcher) -> list[psutil.Process]:
    """Processes of a launcher's launches that have ended, as far as this host sees them.

    Where ranks live on nodes, what is kept has been started by srun or Slurm, and what is left by a process of ours.
    """
    if LAUNCHERS[launcher.name].hosts == "one":
        return launcher.leftovers()  # type: ignore[attr-defined,no-any-return]
    marked = processes.find_marked(SESSION_VARIABLE, launcher.session)
    ours = {process.pid: process for process in marked if process.name() != "srun"}
    return [process for process in ours.values() if process.ppid() in ours]


class Launch:
    """Launches functions of one file; afterwards no process of the launch is alive.

    ``directory`` is for launches and data, ``file`` has the bodies, ``device`` is that of ranks unless a launch names
    one.
    """

    def __init__(self, launcher: Launcher, directory: Path, file: Path, device: str = "cpu") -> None:
        self.device = device
        self.launcher = launcher
        self.directory = directory
        self.file = file

    def __call__(
        self,
        function: str,
        *,
        world_size: int = 2,
        timeout_s: float = 60.0,
        backend: str = "gloo",
        device: str | None = None,
        variables: dict[str, str] | None = None,
        params: dict[str, object] | None = None,
        body: BodyReference | None = None,
        working_dir: Path | None = None,
        stands_for: int | None = None,
        **plan: object,
    ) -> LaunchRecord:
        device = device or self.device
        if device == "cuda":
            plan = {"devices": list(range(world_size)), **plan}
        directory = self.directory / f"launch-{uuid.uuid4().hex[:6]}"
        directory.mkdir(mode=0o700)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **LAUNCHERS[self.launcher.name].variables}
        record = supervise(
            LaunchPlan(
                index=0,
                world_size=world_size,
                backend=backend,
                device=device,  # type: ignore[arg-type]
                work=Ranks(
                    body=body
                    or BodyReference(file=str(self.file), function=function, module=self.file.stem, is_rewritten=True),
                    params={"a": [1, 2.5, "x"]} if params is None else params,
                    stands_for=stands_for,
                ),
                timeout_s=timeout_s,
                directory=str(directory),
                data_dir=str(self.directory),
                folder=str(working_dir or self.directory),
                python_path=sys.path,
                variables={**environment, **(variables or {})},
                set_threads=1 if LAUNCHERS[self.launcher.name].sets_threads else None,
                **plan,  # type: ignore[arg-type]
            ),
            Side(launcher=lambda: self.launcher),
        )
        wait_for(lambda: not working_in(self.directory), limit_s=EXIT_S)
        wait_for(lambda: not left_of(self.launcher), limit_s=EXIT_S)
        assert not LaunchFiles(directory).control.exists()
        assert not LaunchFiles(directory).plan.exists()
        return record


class Lent:
    """A launcher that goes on when the run of pytest that it was lent to closes it."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    def __getattr__(self, name: str) -> Any:
        return getattr(self._launcher, name)

    def close(self) -> None:
        processes.kill(left_of(self._launcher))
