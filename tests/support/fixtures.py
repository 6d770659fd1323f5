"""The fixture ``distbench`` in the test's own process: nothing is launched."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pytest_distbench.launch.starters import LAUNCHERS
from pytest_distbench.machine.gpus import Gpus
from pytest_distbench.plugin.distbench import Distbench
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Sample
from pytest_distbench.records.plan import LaunchRequest
from pytest_distbench.run.request import Settings
from pytest_distbench.run.session import Session
from pytest_distbench.run.sources import Source


class SimulatedRuns(Source):
    """One second a launch."""

    def __init__(self, request: LaunchRequest) -> None:
        super().__init__()
        self.request = request

    def add(self, *, only: object = ()) -> None:
        step = Sample(name="step", unit="s", better="lower", value=1.0)
        self.launches.append(LaunchRecord(index=len(self), outcome="passed", wall_s=1.0, measurements=[step]))


SURROUNDINGS = SimpleNamespace(conditions=lambda request: {})


class SimulatedSession(Session):
    """Starts nothing."""

    def source(self, request: LaunchRequest) -> Source:
        return SimulatedRuns(request)

    launches_of = source

    @contextlib.contextmanager
    def alone(self, world_size: int, *, takes_host: bool, waits: bool = True) -> Iterator[bool]:
        yield True


def made_up_distbench(test: Path, folder: Path, **changes: object) -> Distbench:
    """The fixture of a test in this file, without a pytest run around it; a launch of it takes a second."""
    settings = Settings(
        world_sizes=(4,),
        gpus=Gpus(),
        backend=("gloo",),
        launches=(None, 3),
        timeout_s=60.0,
        baselines=folder,
        platform="cpu-x-2c",
    )
    launching: Any = SimpleNamespace(
        launcher_kind=LAUNCHERS["warm"],
        settings=dataclasses.replace(settings, **changes),
        on_progress=lambda text: None,
        surroundings=SURROUNDINGS,
    )  # type: ignore[arg-type]
    node: Any = SimpleNamespace(
        path=test,
        nodeid="t.py::t",
        location=("t.py", 0, "t"),
        stash={},
        iter_markers=lambda: iter(()),
        config=SimpleNamespace(
            rootpath=test.parent,
            getoption=lambda *_: None,
            args=[],
            invocation_params=SimpleNamespace(args=(), dir=test.parent),
        ),
    )
    return Distbench(SimulatedSession(launching), node, 2, "gloo")
