"""Goal: a training loop with a target, and the clock around it.

Time to accuracy as MLPerf counts it: from the first step to the evaluation that meets the target, evaluations
included. The time of the steps alone is kept apart, so that throughput and convergence are judged separately.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from pytest_distbench.errors import RecordingError
from pytest_distbench.records import Better

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext


class Goal:
    """Drive a training until ``metric`` meets its target.

    ::

        goal = rank.goal("accuracy", target=0.97, every=5, max_steps=300)
        for step in goal.steps(samples_per_step=128):
            loss = train_one_step()
            goal.check(lambda: accuracy(model), loss=loss)

    Records, when the loop ends: ``steps_to_<metric>`` (no value if the target was missed) and ``final_<metric>``, both
    exact, because a seeded training repeats itself under the same software; ``time_to_<metric>`` (s) and
    ``step_time`` (s, series), judged with their noise; ``samples_per_second``, ``loss`` and more for information.
    A collective object: every rank runs the same steps.
    """

    def __init__(
        self, rank: RankContext, metric: str, *, target: float, every: int, max_steps: int, better: Better = "higher"
    ) -> None:
        if every < 1 or max_steps < every:
            raise RecordingError(
                f"goal({metric!r}): every={every}, max_steps={max_steps}; wanted 1 <= every <= max_steps"
            )
        self.metric = metric
        self.target = target
        self.every = every
        self.max_steps = max_steps
        self.better = better
        self.reached_at: int | None = None
        self._rank = rank
        self._step = 0
        self._step_times: list[float] = []
        self._evaluation_s = 0.0
        self._values: list[float] = []
        self._losses: list[torch.Tensor] = []

    def steps(self, *, samples_per_step: int) -> Iterator[int]:
        """Yield 1, 2, ... until the target is met or ``max_steps`` are done; then record.

        Args:
            samples_per_step: samples all ranks together use in one step.
        """
        self._rank.barrier()
        start = time.perf_counter()
        for step in range(1, self.max_steps + 1):
            self._step = step
            evaluated_before = self._evaluation_s
            step_start = time.perf_counter()
            yield step
            self._synchronize()
            self._step_times.append(time.perf_counter() - step_start - (self._evaluation_s - evaluated_before))
            if self.reached_at is not None:
                break
        total_s = time.perf_counter() - start
        if not self._values:
            raise RecordingError(f"goal({self.metric!r}): the loop never called goal.check(...)")
        self._record(total_s, samples_per_step)

    def check(self, evaluate: Callable[[], float], *, loss: torch.Tensor | None = None) -> bool:
        """Note the step's loss; every ``every`` steps evaluate and compare with the target.

        Args:
            evaluate: returns the metric; rank 0's value counts. Its time is not part of the step's.
            loss: of this rank and step; kept on its device until the end.

        Returns:
            Whether the target is met; the loop then ends by itself.
        """
        if loss is not None:
            self._losses.append(loss.detach())
        if self._step % self.every:
            return False
        self._synchronize()
        start = time.perf_counter()
        value = self._rank.agree(float(evaluate()))
        self._synchronize()
        self._evaluation_s += time.perf_counter() - start
        self._values.append(value)
        self._rank.progress(
            f"step {self._step}/{self.max_steps}", **{self.metric: f"{value:.3f} (target {self.target:g})"}
        )
        if value <= self.target if self.better == "lower" else value >= self.target:
            self.reached_at = self._step
        return self.reached_at is not None

    def _record(self, total_s: float, samples_per_step: int) -> None:
        rank, metric = self._rank, self.metric
        facts = {"target": self.target, "every": self.every, "max_steps": self.max_steps}
        rank.record(f"steps_to_{metric}", self.reached_at, unit="steps", better="exact", facts=facts)
        rank.record(f"time_to_{metric}", total_s if self.reached_at else None, unit="s", better="lower", facts=facts)
        rank.record("step_time", self._step_times, unit="s", better="lower")
        rank.record(f"final_{metric}", self._values[-1], better="exact", facts=facts)
        rank.record(f"best_{metric}", (min if self.better == "lower" else max)(self._values), better="info")
        rank.record(
            "samples_per_second",
            samples_per_step * self._step / (total_s - self._evaluation_s),
            unit="samples/s",
            reduce="min",
        )
        rank.record("evaluation_time", self._evaluation_s, unit="s", reduce="max")
        if self._losses:
            rank.record("loss", torch.stack(self._losses).float().cpu().tolist(), better="info", reduce="mean")

    def _synchronize(self) -> None:
        if self._rank.device.type == "cuda":
            torch.cuda.synchronize(self._rank.device)
