"""RankContext: what a body is given."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, SupportsFloat

import torch
import torch.distributed as dist

from pytest_distbench.errors import RecordingError
from pytest_distbench.records.kinds import METRIC_KINDS, Better, Reduce
from pytest_distbench.records.metric import PHASE, Observation, Scalar, metric_key
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.record import replaced
from pytest_distbench.worker.blocks import block_length
from pytest_distbench.worker.control import ControlLine
from pytest_distbench.worker.fingerprint import Watch
from pytest_distbench.worker.goal import Goal
from pytest_distbench.worker.meter import Meter


class RankContext:
    """The rank's view of its launch, and the place where it puts what it measures.

    Attributes:
        rank: this process in the group, 0 to world_size - 1.
        local_rank: this process on its host.
        world_size: processes in the group.
        node: index of the host.
        device: ``torch.device`` this rank computes on.
        backend: name of the process group's backend.
        params: what the test passed to ``distbench.run(params=...)``.
        seed: for random number generators; the same in every rank and every launch.
        launch: index of this launch in its case.
        data_dir: directory shared by the launches of this run.
        watch: takes the fingerprints.
    """

    def __init__(self, plan: LaunchPlan, control: ControlLine) -> None:
        self.rank = int(os.environ["RANK"])
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.world_size = int(os.environ["WORLD_SIZE"])
        self.node = int(os.environ["GROUP_RANK"])
        self.device = (
            torch.device("cuda", plan.devices[self.local_rank]) if plan.device == "cuda" else torch.device("cpu")
        )
        self.backend = plan.backend
        self.params: Mapping[str, Any] = plan.params
        self.seed = plan.seeds[0]
        self.launch = plan.index
        self.data_dir = Path(plan.data_dir)
        self.observations: list[Observation] = []
        self.watch = Watch(is_on=plan.backend != "fake")
        self._only = frozenset(plan.only)
        self._control = control
        self._phases: list[str] = []
        self._common_at: dict[str, Scalar] = {}
        self._side_group: dist.ProcessGroup | None = None
        self._unfinished: list[str] = []
        self._takes_turns = plan.takes_turns
        self._waited_s = 0.0

    def timed(
        self,
        name: str,
        *,
        warmup: int,
        iterations: int,
        at: Mapping[str, Scalar] | None = None,
        facts: Mapping[str, Scalar] | None = None,
    ) -> Iterator[int]:
        """Time the body of a ``for`` loop, once per iteration. Called by all ranks with equal counts.

        Each iteration begins with an untimed barrier. On a CPU the clock is read before and after the loop body;
        on CUDA, events are recorded around it on the current stream and synchronised. The iteration's time is the
        maximum over ranks, the launch's value the 25th percentile of these. The last warm-up iteration gives the
        fingerprint; without warm-up the first timed one.

        Args:
            name: of the metric, in seconds, lower is better.
            warmup: untimed iterations before the first timed one.
            iterations: timed iterations, at least 1.
            at: the point measured, for example ``{"message_bytes": 4096}``; part of the metric's identity.
            facts: stored beside the numbers, not part of the identity.

        Yields:
            The index of the iteration, negative during warm-up.
        """
        if iterations < 1 or warmup < 0:
            raise RecordingError(f"timed({name!r}): warmup={warmup}, iterations={iterations}; wanted >= 0 and >= 1")
        label = metric_key(name, {**self._common_at, **(at or {})})
        self._unfinished.append(label)
        for i in range(-warmup, 0):
            self.barrier()
            if i == -1:
                self.watch.begin(label)
            yield i
            self.watch.end(ahead=iterations)
        times = []
        meter = Meter()
        block = block_length(iterations)
        for i in range(iterations):
            if i % block == 0:
                self.take_turn()
            if i == 0 and not warmup:
                self.watch.begin(label)
            self.barrier()
            meter.start()
            if self.device.type == "cuda":
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record()
                yield i
                end.record()
                end.synchronize()
                times.append(begin.elapsed_time(end) / 1e3)
            else:
                start = time.perf_counter()
                yield i
                times.append(time.perf_counter() - start)
            meter.stop()
            self.watch.end(ahead=iterations - 1 - i)
        self._unfinished.remove(label)
        self.record_times(name, times, meter, at=at, facts=facts)

    def record(
        self,
        name: str,
        value: SupportsFloat | Iterable[SupportsFloat] | None,
        *,
        unit: str = "",
        better: Better = "info",
        reduce: Reduce | None = None,
        at: Mapping[str, Scalar] | None = None,
        facts: Mapping[str, Scalar] | None = None,
    ) -> None:
        """Record a number or a series under a name. Not a collective call: one rank alone may record.

        Args:
            name: of the metric.
            value: a number, a series (reduced over ranks element by element), or None for "has no value", such as
                the steps to a goal that was never reached.
            unit: ``s`` and ``B`` are scaled where printed, any other text is shown as it is.
            better: ``higher`` and ``lower`` are judged with their noise, ``exact`` must be equal, ``info`` is
                shown and not judged. For seeded trainings: ``curve`` (a series, such as the first losses) must follow
                the baseline's step by step, ``same`` may neither rise nor fall, ``steps`` (to a goal) may not rise,
                ``floor`` (a quality at the end) may not fall; see docs/convergence.md.
            reduce: over the ranks that recorded it. Default: the worst rank (``max`` for lower, ``min`` for
                higher), rank 0 for info, ``mean`` for curve and same; for exact, steps and floor ``all``: the ranks
                must agree.
            at: the point measured; part of the metric's identity.
            facts: stored beside the numbers. For the kinds of seeded trainings they define the number: it is not
                compared with one of other facts.

        Raises:
            RecordingError: not a number, an empty series, or a name recorded twice.
        """
        point = {**self._common_at, **(at or {})}
        key = metric_key(name, point)
        if any(metric_key(o.name, o.at) == key for o in self.observations):
            raise RecordingError(f"{key!r} is recorded twice: give each its own name or point (at=...)")
        if not name.isprintable() or not unit.isprintable():
            raise RecordingError(f"record({name!r}): names and units are printable text")
        if better not in METRIC_KINDS:
            raise RecordingError(f"record({key!r}): better={better!r}; wanted one of {', '.join(METRIC_KINDS)}")
        if isinstance(value, (str, bytes)):
            raise RecordingError(f"record({key!r}): {value!r} is text; wanted a number or a series of numbers")
        is_series = isinstance(value, Iterable) and not (isinstance(value, torch.Tensor) and value.dim() == 0)
        values = [] if value is None else [float(v) for v in value] if is_series else [float(value)]  # type: ignore[union-attr,arg-type]
        if is_series and not values:
            raise RecordingError(f"record({key!r}): the series is empty: nothing was measured")
        if not all(math.isfinite(v) for v in values):
            raise RecordingError(
                f"record({key!r}): {next(v for v in values if not math.isfinite(v))} is not a finite number"
            )
        if METRIC_KINDS[better].is_of_training:
            _check_convergence(f"record({key!r}, better={better!r})", better, values, facts or {}, is_series=is_series)
        self.observations.append(
            Observation(
                name=name,
                unit=unit,
                better=better,
                reduce=reduce or METRIC_KINDS[better].reduce,
                values=values,
                is_series=is_series,
                at=point,
                facts=dict(facts or {}),
            )
        )

    def record_times(
        self,
        name: str,
        seconds: list[float],
        meter: Meter,
        *,
        at: Mapping[str, Scalar] | None = None,
        facts: Mapping[str, Scalar] | None = None,
    ) -> None:
        """Record a clock's series with the CPU time and the waits of the same iterations."""
        self.record(name, seconds, unit="s", better="lower", reduce="max", at=at, facts=facts)
        self.observations[-1] = replaced(self.observations[-1], companions={"cpu_s": meter.cpu_s, "waits": meter.waits})

    def point_key(self, name: str) -> str:
        """The key of a metric at the current point."""
        return metric_key(name, self._common_at)

    def wants(self, name: str, at: Mapping[str, Scalar] | None = None) -> bool:
        """Whether this launch needs the metric.

        A further launch, started because some answers are open, needs only those: a body with many independent
        points may skip the others. The same in every rank.
        """
        return not self._only or metric_key(name, {**self._common_at, **(at or {})}) in self._only

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a part of the body as the metric ``phase/<outer>/<name>``. Phases nest; a name is used once."""
        self._phases.append(name)
        path = "/".join(self._phases)
        self._synchronize()
        start = self.own_clock()
        try:
            yield
        finally:
            self._synchronize()
            self._phases.pop()
        self.record(f"{PHASE}{path}", self.own_clock() - start, unit="s", better="info", reduce="max")

    def goal(
        self,
        metric: str,
        *,
        target: float,
        every: int,
        max_steps: int,
        better: Better = "higher",
        min_steps: int = 25,
        curve_steps: int = 10,
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

    @contextlib.contextmanager
    def point(self, **at: Scalar) -> Iterator[None]:
        """Everything recorded inside belongs to this point, for example ``rank.point(seed=3)``."""
        before = self._common_at
        self._common_at = {**before, **at}
        try:
            yield
        finally:
            self._common_at = before

    def progress(self, text: str = "", **fields: object) -> None:
        """Show a line while the test runs: ``rank.progress(step=10, loss=0.31)``. Rank 0's lines are shown."""
        if self.rank == 0:
            self._control.progress(" ".join(filter(None, [text, *(f"{k} {v}" for k, v in fields.items())])))

    def barrier(self) -> None:
        """Wait for all ranks, without touching the device."""
        if self.backend != "fake":
            with self.watch.apart():
                dist.barrier(group=self.side_group)

    def agree(self, value: float) -> float:
        """Rank 0's value in every rank. A collective call."""
        if self.backend == "fake":
            return value
        box = torch.tensor([value], dtype=torch.float64)
        with self.watch.apart():
            dist.broadcast(box, src=0, group=self.side_group)
        return float(box.item())

    def sum_over_ranks(self, value: float) -> float:
        """The sum of every rank's value, in every rank. A collective call; integers below 2**53 are exact."""
        if self.backend == "fake":
            return value
        box = torch.tensor([value], dtype=torch.float64)
        with self.watch.apart():
            dist.all_reduce(box, group=self.side_group)
        return float(box.item())

    @property
    def side_group(self) -> dist.ProcessGroup | None:
        """A gloo group for barriers and counts, so that they do not disturb the measured backend.

        The default group itself where that is gloo. The first use is a collective call.
        """
        if self.backend != "gloo" and self._side_group is None:
            group = dist.new_group(backend="gloo")
            assert isinstance(group, dist.ProcessGroup)
            self._side_group = group
        return self._side_group

    def take_turn(self) -> None:
        """Where two groups run block by block in turns (``--distbench-against``), wait for this group's turn.

        Not a collective call, so that no collective is pending, and none times out, while the other group runs.
        """
        if self._takes_turns:
            start = time.perf_counter()
            self._control.take_turn()
            self._waited_s += time.perf_counter() - start

    def own_clock(self) -> float:
        """Seconds on a clock that stands still while another group has its turn."""
        return time.perf_counter() - self._waited_s

    def check_complete(self) -> None:
        """Raise RecordingError if a ``timed`` loop was left early: its times would be missing silently."""
        if self._unfinished:
            raise RecordingError(
                f"timed({self._unfinished[0]!r}) was left before its last iteration: nothing was recorded"
            )

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _check_convergence(
    call: str, better: Better, values: list[float], facts: Mapping[str, Scalar], *, is_series: bool
) -> None:
    """Refuse what the rules for trainings could not judge later, while the rank can still say where it came from."""
    if is_series != (METRIC_KINDS[better].shape == "series"):
        wanted, got = ("a series, one value per step", "one number") if not is_series else ("one number", "a series")
        raise RecordingError(f"{call}: wanted {wanted}, got {got}")
    if METRIC_KINDS[better].rule == "steps":
        every = facts.get("every", 1)
        if isinstance(every, (bool, str)) or not every > 0:
            raise RecordingError(f"{call}: every={every!r} in facts; wanted the steps between evaluations, above 0")
    if METRIC_KINDS[better].rule == "floor" and "evaluation_samples" in facts:
        samples = facts["evaluation_samples"]
        if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
            raise RecordingError(f"{call}: evaluation_samples={samples!r} in facts; wanted a whole number, at least 1")
        if any(not 0 <= v <= 1 for v in values):
            raise RecordingError(f"{call}: {values[0]:g} is no share of {samples} samples; wanted 0 to 1")
