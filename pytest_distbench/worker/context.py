"""RankContext, the argument of a body; and Goal, a training loop with a target and timings.

Time to accuracy is MLPerf's: from the first step to the evaluation that meets the target, evaluations included. The
time of the steps is kept apart: throughput and convergence are judged separately.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import get_args

import torch

from pytest_distbench.errors import RecordingError, show
from pytest_distbench.records.kinds import Better
from pytest_distbench.records.metric import (
    EVALUATED,
    EVALUATION_ENDS,
    EVERY,
    FEWEST_CURVE_STEPS,
    MOST_CURVE_STEPS,
    UNTIL_CHANGED,
    Scalar,
)
from pytest_distbench.records.wanted import MODES, Mode, OverRanks
from pytest_distbench.worker import notebook
from pytest_distbench.worker.clock import HostClock
from pytest_distbench.worker.clock.clocks import DeviceSteps, HostSteps, Meter, Steps, block_length
from pytest_distbench.worker.clock.iterations import MOST_OF_STRUCTURE, time_iterations
from pytest_distbench.worker.member import Member


class RankContext(Member):
    """The rank's view of its launch, and the place where it puts what it measures.

    Attributes:
        rank: this process in the group, 0 to world_size - 1.
        local_rank: this process on its host.
        world_size: processes in the group.
        node: index of the host.
        device: ``torch.device`` of this rank.
        backend: backend of the process group: ``gloo``.
        params: parameters that the test gave: ``distbench.run(params=...)``.
        seed: seed of the training, the same in every rank and launch.
        launch: index of this launch in its case.
        data_dir: folder shared by the launches of this run.
        watch: takes the communication fingerprints.
        delay: delays the timed code, for a positive control.
        is_memory_its_own: whether this process's peak memory is the workload's, and is recorded.
        only_structure: whether this process represents one rank on the backend ``fake``, without timings and values.
    """

    def timed(
        self,
        name: str,
        *,
        warmup: int,
        iterations: int,
        at: Mapping[str, Scalar] | None = None,
        identity: Mapping[str, Scalar] | None = None,
        facts: Mapping[str, Scalar] | None = None,
        mode: Mode = "per-iteration",
        over_ranks: OverRanks = "max",
        before: Callable[[int], object] | None = None,
    ) -> Iterator[int]:
        """Time the body of a ``for`` loop, once per iteration. Called by all ranks with equal counts.

        Each iteration begins with an untimed barrier. On a CPU the host's time is read before and after the loop body.
        On CUDA, events are recorded around it on the current stream, which is kept busy while the host enqueues: the
        time is the device's, not Python's, unless the loop body itself waits for the device or takes the host more than
        20 ms. The warm-up decides which, in at least three iterations; without one the host's time counts. The
        iteration's time is the maximum over ranks, the launch's value the 25th percentile of these. The last warm-up
        iteration gives the fingerprint; without warm-up the first timed one.

        With ``mode="batch"`` one barrier precedes twenty iterations that are timed together, as in nccl-tests, and a
        value is the mean of a batch. With ``mode="graph"``, on CUDA, one iteration is captured as a CUDA graph and
        replayed ``iterations`` times: the loop body runs in the warm-up, and once more with index 0.

        Args:
            name: name of the metric, which is in seconds; lower is better.
            warmup: untimed iterations; 1 and 2 are 3 on CUDA.
            iterations: timed iterations, at least 1.
            at: the measured point, such as ``{"message_bytes": 4096}``; it distinguishes metrics of one name.
            identity: values that define the number, such as ``{"in_place": True}``; numbers of two identities are never
                compared.
            facts: values that only describe the number; not compared.
            mode: ``per-iteration``; ``batch``: twenty are timed together, as nccl-tests does; ``graph``: the replay of
                a CUDA graph. The last two need a warm-up.
            over_ranks: ``max`` of the ranks' times, or their ``mean``, as nccl-tests reports.
            before: called with the index, untimed, before each iteration; with ``batch`` and ``graph`` in the warm-up
                only.

        Returns:
            The index of each iteration, negative during warm-up.

        Raises:
            RecordingError: an argument is not what is wanted, or the metric was recorded before.
        """
        call = f"timed({show(name)})"
        name = notebook.check_metric(call, name)
        warmup = notebook.check_whole(call, "warmup", warmup, least=0)
        iterations = notebook.check_whole(call, "iterations", iterations, least=1)
        identity = notebook.check_scalars(call, "identity", identity)
        facts = notebook.check_scalars(call, "facts", facts)
        point = {**self._common_at, **notebook.check_point(call, at)}
        if before is not None and not callable(before):
            notebook.refuse(call, "before to be a function of the iteration's index, or None", before)
        identity = self._with_mode(call, mode, warmup, identity)
        if notebook.check_choice(call, "over_ranks", over_ranks, get_args(OverRanks)) != "max":
            identity = {**identity, "over_ranks": over_ranks}
        label = self.notebook.expect_new(name, point)
        self._unfinished.append(label)

        def run() -> Iterator[int]:
            self.training_watch.before_loop()
            with self.phases.loop(name, point, is_captured=mode == "graph") as loop:
                times, meter = yield from time_iterations(
                    self, loop, label, mode=mode, warmup=warmup, iterations=iterations, before=before
                )
                self._unfinished.remove(label)
                self.record_times(name, times, meter, at=point, identity=identity, facts=facts, over_ranks=over_ranks)
            self.training_watch.between_steps()

        return run()

    def _with_mode(self, call: str, mode: Mode, warmup: int, identity: dict[str, Scalar]) -> dict[str, Scalar]:
        notebook.check_choice(call, "mode", mode, MODES)
        if identity.get("mode", mode) != mode:
            raise RecordingError(f"{call}: mode={mode!r}, and {identity['mode']!r} in identity=; leave it out there")
        if mode == "per-iteration":
            return identity
        if mode == "graph" and self.device.type != "cuda":
            raise RecordingError(
                f"{call}: mode='graph' replays a CUDA graph, and this rank computes on the {self.device.type}: run it "
                "with --gpu, or mark the test with @pytest.mark.gpu"
            )
        if not warmup:
            raise RecordingError(
                f"{call}: mode={mode!r} needs a warm-up, which gives the fingerprint: warmup=1 or more"
            )
        return {**identity, "mode": mode}

    def goal(
        self,
        metric: str,
        *,
        target: float,
        every: int,
        max_steps: int,
        better: Better = "higher",
        min_steps: int = 25,
        curve_steps: int | None = None,
        evaluation_samples: int | None = None,
    ) -> Goal:
        """Start a training towards ``metric`` >= ``target`` (<= with ``better="lower"``). See :class:`Goal`."""
        return Goal(
            self,
            metric,
            target=target,
            every=every,
            max_steps=max_steps,
            better=better,
            min_steps=min_steps,
            curve_steps=curve_steps,
            evaluation_samples=evaluation_samples,
        )


STEADY_STEP = 3  # the step whose collectives are the fingerprint: DDP rebuilds its buckets in the second


class Goal:
    """Drive a training until ``metric`` meets its target.

    ::

        goal = rank.goal("accuracy", target=0.97, every=5, max_steps=300)
        for step in goal.steps(samples_per_step=128):
            loss = train_one_step()
            goal.check(lambda: accuracy(model), loss=loss)

    Records, when the loop ends, numbers of the seed: ``loss_curve`` (the first losses, see ``curve_steps``),
    ``mean_loss`` (over the first ``min_steps``), ``steps_to_<metric>`` (no value if the target was missed) and
    ``final_<metric>`` (of the last evaluation, which is informative if ``min_steps`` goes well beyond the target). It
    also records timings: ``time_to_<metric>`` (s, if the target was met) and ``step_time`` (s, series); for information
    ``evaluated_<metric>`` (a value for each evaluation), ``evaluation_ends`` (s, of each), ``samples_per_second``,
    ``loss`` and ``evaluation_time`` (s). On CUDA the host runs ahead of the device as it does outside of a test. It
    synchronizes once per block of ten or more steps, and before an evaluation, and the steps of a block have the same
    time. A collective object: every rank runs the same steps.
    """

    def __init__(
        self,
        rank: Member,
        metric: str,
        *,
        target: float,
        every: int,
        max_steps: int,
        better: Better,
        min_steps: int,
        curve_steps: int | None,
        evaluation_samples: int | None,
    ) -> None:
        """Prepare a training.

        Args:
            rank: this process in its group.
            metric: name of the evaluated metric.
            target: value that ends the training.
            every: steps between two evaluations.
            max_steps: the target counts as missed after these.
            better: ``higher`` or ``lower``, of the metric.
            min_steps: the training runs at least so many.
            curve_steps: length of the golden curve. None: until the baseline's loss has changed by 10 %, 10 to 50.
            evaluation_samples: size of the test set, if the metric is a fraction of it (0 to 1).

        Raises:
            RecordingError: numbers that make no training.
        """
        call = self._call = f"goal({show(metric)})"
        self.metric = notebook.check_name(call, "metric", metric)
        self.target = notebook.check_number(call, "target", target)
        self.every = notebook.check_whole(call, "every", every, least=1)
        self.max_steps = notebook.check_whole(call, "max_steps", max_steps, least=every)
        min_steps = notebook.check_whole(call, "min_steps", min_steps, least=0)
        self.curve_steps, self.evaluation_samples = (
            None if value is None else notebook.check_whole(call, name, value, least=1)
            for name, value in (("curve_steps", curve_steps), ("evaluation_samples", evaluation_samples))
        )
        self.better = notebook.check_choice(call, "better", better, ("higher", "lower"))
        self.min_steps = min(max(min_steps, self.curve_steps or FEWEST_CURVE_STEPS), self.max_steps)
        self.reached_at: int | None = None
        self._start = 0.0
        self._ends_s: list[float] = []
        self._rank = rank
        self._step = 0
        self._meter = Meter(rank.delay)
        self._timing: Steps = HostSteps(self._meter, rank.delay)
        if rank.device.type == "cuda":
            self._timing = DeviceSteps(self._meter, rank.synchronize, rank.delay)
        self._evaluation_s = 0.0
        self._values: list[float] = []
        self._losses: list[torch.Tensor] = []
        self._is_open = self._is_over = False

    def steps(self, *, samples_per_step: float) -> Iterator[int]:
        """Give 1, 2, ... until the target is met and ``min_steps`` are done, or ``max_steps``; then record.

        Args:
            samples_per_step: samples of all ranks in a step.

        Raises:
            RecordingError: no number of samples, the steps of this goal were taken before, or there was no evaluation.
        """
        call = f"{self._call}.steps(...)"
        samples = notebook.check_number(call, "samples_per_step", samples_per_step)
        if samples <= 0:
            notebook.refuse(call, "samples_per_step above 0", samples_per_step)
        if self._is_open or self._is_over:
            raise RecordingError(
                f"{call}: the steps of this goal were taken before; make a new one with rank.goal(...)"
            )
        self._is_open = True
        return self._steps(samples)

    def _steps(self, samples_per_step: float) -> Iterator[int]:
        rank, watch = self._rank, self._rank.watch
        rank.training_watch.before_loop()
        rank.barrier()
        watch.since_mark(rank.point_key("training_start"))
        self._start = rank.own_clock()
        block = block_length(self.max_steps)
        entered: int | None = None
        course = watch.follow(rank.point_key("step_time"))
        if rank.profiler is not None:
            self._timing = rank.profiler.steps(self._timing, rank.point_key("step_time"), after=STEADY_STEP)
        with rank.loop("step_time") as loop:
            for step in range(1, self.max_steps + 1):
                if step % block == 0:
                    rank.take_turn()
                self._step = step
                evaluated_before = self._evaluation_s
                if step <= STEADY_STEP:
                    self._start += _seconds(lambda: watch.begin(rank.point_key("step_time")))
                loop.begin_iteration()
                if step == STEADY_STEP:
                    self._start += _seconds(course.begin)
                self._timing.begin()
                yield step
                is_last = step == self.max_steps or (self.reached_at is not None and step >= self.min_steps)
                is_last |= rank.only_structure and step == STEADY_STEP + MOST_OF_STRUCTURE
                evaluated_s = self._evaluation_s - evaluated_before
                ends_block = is_last or evaluated_s > 0 or step <= STEADY_STEP or (step + 1) % block == 0
                self._timing.end(evaluated_s, ends_block=ends_block)
                if ends_block:
                    self._start += _seconds(loop.collect)
                self._start += _seconds(watch.end)
                if ends_block:
                    self._start += _seconds(rank.training_watch.between_steps)
                if step == STEADY_STEP:
                    entered = watch.entered()
                if step >= STEADY_STEP:
                    self._start += _seconds(functools.partial(course.end, step))
                if is_last:
                    break
            total_s = rank.own_clock() - self._start
            if rank.profiler is not None:
                rank.profiler.end_loop()
            if step > STEADY_STEP:
                watch.compare(rank.point_key("step_time"), since=entered, iterations=step - STEADY_STEP, course=course)
            watch.mark()
            self._is_open, self._is_over = False, True
            if rank.only_structure:
                return
            if not self._values:
                raise RecordingError(f"{self._call}: the loop never called goal.check(...)")
            self._record(total_s, samples_per_step)

    def check(self, evaluate: Callable[[], float], *, loss: torch.Tensor | float | None = None) -> bool:
        """Note the step's loss; every ``every`` steps evaluate and compare with the target.

        Args:
            evaluate: returns the metric; rank 0's value counts, and its time is not part of the step's.
            loss: loss of this rank in this step: a number, or a tensor of one element.

        Where no value means anything, on the backend ``fake``, nothing is evaluated.

        Returns:
            Whether this evaluation meets the target; the loop ends by itself.

        Raises:
            RecordingError: called outside the loop, or what is given or evaluated is no number.
        """
        call = f"{self._call}.check(...)"
        if not self._is_open or not self._step:
            raise RecordingError(f"{call}: wanted inside the loop over goal.steps(...), found outside of it")
        if not callable(evaluate):
            notebook.refuse(call, "evaluate to be a function that returns the metric", evaluate)
        if loss is not None:
            self._losses.append(torch.as_tensor(notebook.check_unread(call, "loss", loss)))
        if self._step % self.every or self._rank.only_structure:
            return False
        self._timing.pause()
        self._rank.synchronize()
        mark = self._rank.delay.mark()
        start = HostClock.perf_counter()
        with self._rank.watch.apart(is_workloads=True), self._rank.phases.apart():
            if (mine := notebook.real(found := evaluate())) is None:
                notebook.refuse(call, "evaluate() to return a number", found)
            where = f"{call} at step {self._step}"  # where it is none that could be recorded, every rank says so
            value = notebook.check_number(where, "the evaluation on rank 0", self._rank.agree(mine))
            self._rank.synchronize()
        self._rank.delay.wait(mark, is_apart=True)
        self._evaluation_s += HostClock.perf_counter() - start
        self._values.append(value)
        self._ends_s.append(self._rank.own_clock() - self._start)
        self._rank.progress(
            f"step {self._step}/{self.max_steps}", **{self.metric: f"{value:.3f} (target {self.target:g})"}
        )
        is_met = value <= self.target if self.better == "lower" else value >= self.target
        if is_met and self.reached_at is None:
            self.reached_at = self._step
        return is_met

    def _record(self, total_s: float, samples_per_step: float) -> None:
        rank, metric = self._rank, self.metric
        goal = {"target": self.target, "every": self.every}
        rank.record(f"steps_to_{metric}", self.reached_at, unit="steps", better="steps", identity=goal)
        if self.reached_at is not None:  # a miss is one finding, that of the steps, not two
            reached_s = self._ends_s[self.reached_at // self.every - 1]
            rank.record(f"time_to_{metric}", reached_s, unit="s", better="lower", identity=goal)
        rank.record_times("step_time", self._timing.times, self._meter)
        identity = {"min_steps": self.min_steps, **goal}
        if self.evaluation_samples is not None:
            identity["evaluation_samples"] = self.evaluation_samples
        better: Better = "floor" if self.better == "higher" else "same"
        rank.record(f"final_{metric}", self._values[-1], better=better, identity=identity)
        rank.record(f"{EVALUATED}{metric}", self._values, better="info", facts={EVERY: self.every})
        rank.record(EVALUATION_ENDS, self._ends_s, unit="s", better="info", facts={EVERY: self.every})
        rate = samples_per_step * self._step / (total_s - self._evaluation_s)
        rank.record("samples_per_second", rate, unit="samples/s", reduce="min")
        rank.record("evaluation_time", self._evaluation_s, unit="s", reduce="max")
        if not self._losses:
            return
        losses = torch.stack([loss.to(rank.device) for loss in self._losses]).float().cpu().tolist()
        wrong = next((i for i, loss in enumerate(losses) if not math.isfinite(loss)), None)
        if wrong is not None:
            raise RecordingError(f"{self._call}: the loss is {losses[wrong]} at step {wrong + 1}: it diverged")
        first = losses[: self.min_steps]
        facts = {UNTIL_CHANGED: True} if self.curve_steps is None else {}
        rank.record_curve(losses, steps=self.curve_steps or MOST_CURVE_STEPS, facts=facts)
        rank.record("mean_loss", math.fsum(first) / len(first), better="same", identity={"steps": len(first)})
        rank.record("loss", losses, better="info", reduce="mean")


def _seconds(work: Callable[[], None]) -> float:
    start = HostClock.perf_counter()
    work()
    return HostClock.perf_counter() - start
