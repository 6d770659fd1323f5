"""What torch's profiler sees of one rank, in this process."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from support.ranks import make_rank

from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.worker import profiler
from pytest_distbench.worker.clock import Delay
from pytest_distbench.worker.clock.clocks import HostSteps, HostStopwatch, Meter
from pytest_distbench.worker.profiler import ITERATIONS, Profiler

NO_DELAY = Delay(0.0, time.perf_counter)


class Made:
    """A profiler, how often its rank waited for the others, and what it wrote."""

    def __init__(self, folder: Path, *, is_whole: bool = False) -> None:
        self.files = LaunchFiles(folder)
        self.waited = 0
        self.in_loop = False
        self.profiler = Profiler(
            files=self.files,
            rank=0,
            is_whole=is_whole,
            is_on_device=False,
            synchronize=lambda: None,
            barrier=self._wait,
            in_loop=lambda: self.in_loop,
        )

    def _wait(self) -> None:
        self.waited += 1

    def iterate(self, loop: str, iterations: int) -> None:
        watch = self.profiler.watch(HostStopwatch(NO_DELAY), loop)
        for i in range(iterations):
            watch.start()
            with self.profiler.phase(f'part "{i}" of \\', torch.autograd.profiler.record_function("inside")):
                torch.ones(2) + 1
            watch.stop()
        self.profiler.end_loop()

    @property
    def loops(self) -> list[str]:
        found: list[str] = json.loads(self.files.loops(0).read_bytes())
        return found

    def names(self, loop: int = 0) -> list[str]:
        document: dict[str, Any] = json.loads(self.files.trace(0, loop).read_bytes())
        return [e["name"] for e in document["traceEvents"] if e.get("cat") in ("user_annotation", "cpu_op")]


def test_a_few_iterations_of_each_loop_are_looked_at_with_their_phases(tmp_path: Path) -> None:
    made = Made(tmp_path)
    with made.profiler.body():
        torch.zeros(2)
        made.iterate('latency[n="4"]', ITERATIONS + 5)
        made.iterate("b", 2)

    assert made.loops == ['latency[n="4"]', "b"]
    assert made.waited == 2
    assert [made.names().count(f"part '{i}' of /") for i in (0, ITERATIONS - 1, ITERATIONS)] == [1, 1, 0]
    assert [name for name in made.names(1) if "#" in name] == ["b #0", "b #1"]
    assert "aten::zeros" not in made.names()
    assert not torch.autograd._profiler_enabled()


def test_steps_of_a_training_are_looked_at_when_they_are_steady_and_without_their_evaluation(tmp_path: Path) -> None:
    made = Made(tmp_path)
    with made.profiler.body():
        inner = HostSteps(Meter(NO_DELAY), NO_DELAY)
        steps = made.profiler.steps(inner, "step_time", after=3)
        for i in range(6):
            steps.begin()
            if i == 4:
                steps.pause()
            steps.end(0.0, ends_block=True)

    assert [name for name in made.names() if "#" in name] == ["step_time #0", "step_time #1", "step_time #2"]
    assert len(steps.times) == 6


def train(steps: int) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(steps):
        weight.sum().backward()
        optimizer.step()


def test_of_a_body_without_loops_these_are_steps_of_its_optimizer(tmp_path: Path) -> None:
    made = Made(tmp_path)
    with made.profiler.body():
        train(20)

    iterations = [name for name in made.names() if "#" in name and "Optimizer" not in name]
    assert made.loops == ["optimizer_step"]
    assert iterations == [f"optimizer_step #{i}" for i in range(ITERATIONS)]
    assert made.waited == 0


def test_a_whole_body_is_looked_at_for_a_bounded_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler, "WHOLE_CPU_S", 0.02)
    before = signal.getsignal(signal.SIGVTALRM)
    made = Made(tmp_path, is_whole=True)
    with made.profiler.body():
        end = time.process_time() + 0.3
        while time.process_time() < end:
            torch.ones(2)
        assert not torch.autograd._profiler_enabled()
        torch.zeros(2)

    assert "aten::zeros" not in made.names()
    assert signal.getsignal(signal.SIGVTALRM) == before


def test_a_body_that_raises_leaves_no_profiler_behind_and_no_list_of_traces(tmp_path: Path) -> None:
    made = Made(tmp_path, is_whole=True)
    with pytest.raises(ValueError, match="wrong"), made.profiler.body():
        raise ValueError("wrong")

    assert not torch.autograd._profiler_enabled()
    assert not made.files.loops(0).exists()


def test_steps_of_an_optimizer_before_the_first_loop_or_in_one_are_none(tmp_path: Path) -> None:
    made = Made(tmp_path)
    with made.profiler.body():
        train(5)
        made.iterate("step", 2)
        made.in_loop = True
        train(5)

    assert made.loops == ["step"]
    assert [name for name in made.names() if name.startswith(("step #", "optimizer_step"))] == ["step #0", "step #1"]


def test_a_rank_of_a_judged_launch_has_none() -> None:
    assert make_rank().profiler is None
    assert make_rank(profiled="loops").profiler is not None
