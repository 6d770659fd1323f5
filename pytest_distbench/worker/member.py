"""Member: one rank of a launch, with its group, its timings, and what it records; without the loops that time."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, SupportsFloat

import torch
import torch.distributed as dist

from pytest_distbench.errors import RecordingError, show
from pytest_distbench.records.kinds import Better, Reduce
from pytest_distbench.records.metric import BoundValue, Scalar, metric_key
from pytest_distbench.records.plan import LaunchPlan, Ranks
from pytest_distbench.records.wanted import OverRanks
from pytest_distbench.worker import notebook
from pytest_distbench.worker.clock import Delay, HostClock
from pytest_distbench.worker.clock.clocks import Meter
from pytest_distbench.worker.fingerprint import Watch
from pytest_distbench.worker.line import RankLine
from pytest_distbench.worker.membership import SideGroup
from pytest_distbench.worker.notebook import Notebook
from pytest_distbench.worker.phases import DeviceParts, Loop, Phase, Phases
from pytest_distbench.worker.saves import SaveWatch
from pytest_distbench.worker.trained import TrainingWatch

if TYPE_CHECKING:
    from pytest_distbench.worker.profiler import Profiler


class Member:
    """A rank as its loops see it: :class:`~pytest_distbench.worker.context.RankContext` without the loops."""

    def __init__(
        self,
        plan: LaunchPlan,
        line: RankLine,
        environment: Mapping[str, str] = os.environ,
        *,
        watch: Watch | None = None,
    ) -> None:
        work = plan.work
        self.only_structure = work.stands_for is not None
        self.rank = int(environment["RANK"])
        self.local_rank = int(environment["LOCAL_RANK"])
        self.world_size = int(environment["WORLD_SIZE"])
        self.node = int(environment["GROUP_RANK"])
        device = plan.devices[self.local_rank] if plan.devices else self.local_rank  # of a host that nobody has seen
        self.device = torch.device("cuda", device) if plan.device == "cuda" else torch.device("cpu")
        self.backend = plan.backend
        self.params: Mapping[str, Any] = work.params
        self.seed = work.seeds[0]
        self.launch = plan.index
        self.data_dir = Path(plan.data_dir)
        is_watched = plan.backend != "fake" or self.only_structure
        self.watch = watch or Watch(is_on=is_watched, sees_all=self.only_structure, rank=self.rank)
        self.notebook = Notebook()
        self.is_memory_its_own = True
        self._waited_s = 0.0
        self.delay = Delay(plan.delay, self.own_clock)
        self.phases = Phases(
            self.notebook,
            self.own_clock,
            self.synchronize,
            self.delay,
            sent=lambda: self.watch.sent,
            make_device=lambda: DeviceParts(self.delay) if self.device.type == "cuda" else None,
        )
        self.training_watch = TrainingWatch(
            is_on=is_watched and not self.only_structure, is_clocked=lambda: self.phases.in_loop
        )
        self.save_watch = SaveWatch(
            world_size=self.world_size,
            folder=plan.files.work,
            updates=lambda: self.training_watch.updates,
            is_clocked=lambda: self.phases.in_loop,
        )
        self._only = frozenset(plan.only)
        self._line = line
        self._common_at: dict[str, Scalar] = {}
        backend = plan.backend if work.is_given_a_group else ""
        self._side_group = SideGroup(backend, self.world_size, plan.timeout_s, self.watch)
        self.profiler = self._make_profiler(plan) if plan.profiled else None
        self._takes_turns = isinstance(work, Ranks) and work.takes_turns
        self._unfinished: list[str] = []

    def _make_profiler(self, plan: LaunchPlan) -> Profiler:
        from pytest_distbench.worker.peaks import AllocatorPeak, TensorPeak
        from pytest_distbench.worker.places import root_of
        from pytest_distbench.worker.profiler import Profiler  # torch's is not imported in a judged launch

        work, is_on_device = plan.work, self.device.type == "cuda"
        has_places = plan.profiled in ("places", "memory")
        root = root_of(work.body.file) if has_places and isinstance(work, Ranks) else ""
        return Profiler(
            files=plan.files,
            rank=self.rank,
            is_whole=plan.profiled == "whole",
            root=root,
            memory=(AllocatorPeak if is_on_device else TensorPeak)(root) if plan.profiled == "memory" else None,
            is_on_device=is_on_device,
            synchronize=self.synchronize,
            barrier=self.barrier,
            in_loop=lambda: self.phases.in_loop,
        )

    def standing_for(self, world_size: int, watch: Watch) -> Self:
        """This process as rank 0 of a group that moves no data, :func:`membership.standing_group`."""
        other = copy.copy(self)
        other.rank, other.local_rank, other.world_size = 0, 0, world_size
        other.backend, other.only_structure = "fake", True
        other.watch, other.notebook = watch, Notebook()
        other.phases = Phases(other.notebook, other.own_clock, other.synchronize, other.delay, sent=lambda: watch.sent)
        other._side_group = SideGroup("fake", world_size, 1.0, watch)
        other._common_at, other._unfinished = {}, []
        return other

    def record(
        self,
        name: str,
        value: SupportsFloat | Iterable[SupportsFloat] | None,
        *,
        unit: str = "",
        better: Better = "info",
        reduce: Reduce | None = None,
        at: Mapping[str, Scalar] | None = None,
        identity: Mapping[str, Scalar] | None = None,
        facts: Mapping[str, Scalar] | None = None,
        at_most: BoundValue | None = None,
        at_least: BoundValue | None = None,
    ) -> None:
        """Record a number or a series under a name. Not a collective call: one rank alone may record.

        Args:
            name: name of the metric.
            value: a finite number, a series, or None for "has no value"; numpy's and torch's count, too.
            unit: ``s`` and ``B`` are scaled where printed, any other text is shown as it is.
            better: how it is judged, one of :data:`~pytest_distbench.records.kinds.METRIC_KINDS`: ``info`` (shown
                only), ``lower``, ``higher``, ``memory``, ``exact``; of trainings ``curve``, ``same``, ``steps``,
                ``floor``.
            reduce: over the ranks that recorded it: ``min``, ``max``, ``mean``, ``sum``, ``rank0`` or ``all``, or None
                for the kind's own.
            at: the measured point, such as ``{"message_bytes": 4096}``; it distinguishes metrics of one name.
            identity: values that define the number; numbers of two identities are never compared. For ``steps`` it has
                ``every``, for ``floor`` ``evaluation_samples``.
            facts: values that only describe the number; not compared.
            at_most: a bound: the test fails if the value is above it. A number in ``unit``, or a text with its unit:
                ``"200us"``.
            at_least: a bound: the test fails if the value is below it.

        Raises:
            RecordingError: an argument is not what is wanted, or the metric was recorded before.
        """
        call = f"record({show(name)})"
        name = notebook.check_metric(call, name)
        by = "record" if self.notebook.is_of_script else "rank.record"
        bounds = notebook.check_bounds(call, at_least, at_most, unit=unit, by=by)
        point = {**self._common_at, **notebook.check_point(call, at)}
        self.notebook.note(
            name,
            value,
            unit=unit,
            better=better,
            reduce=reduce,
            at=point,
            identity=identity,
            facts=facts,
            bounds=bounds,
        )

    def record_times(
        self,
        name: str,
        seconds: list[float],
        meter: Meter,
        *,
        at: Mapping[str, Scalar] | None = None,
        over_ranks: OverRanks = "max",
        **options: Any,
    ) -> None:
        """Record a series of times with the secondary signals of the same iterations."""
        options |= {"unit": "s", "better": "lower", "reduce": over_ranks, "signals": meter.signals()}
        self.notebook.note(name, seconds, at={**self._common_at, **(at or {})}, **options)

    def record_curve(self, losses: list[float], *, steps: int, facts: Mapping[str, Scalar]) -> None:
        """Record a training's losses as ``loss_curve``, of which the first ``steps`` are judged as a golden curve."""
        options: dict[str, Any] = {"better": "curve", "facts": facts, "curve_steps": steps}
        self.notebook.note("loss_curve", losses, at=self._common_at, **options)

    def loop(self, name: str) -> AbstractContextManager[Loop]:
        """Open a loop of timed iterations under the metric ``name``: phases inside become series, a value each."""
        return self.phases.loop(name, self._common_at)

    def point_key(self, name: str) -> str:
        return metric_key(name, self._common_at)

    def wants(self, name: str, at: Mapping[str, Scalar] | None = None) -> bool:
        """Whether this launch needs the metric.

        A further launch needs only the undecided metrics: a body with many independent points may skip the others. The
        answer is the same in every rank.
        """
        call = f"wants({show(name)})"
        point = {**self._common_at, **notebook.check_point(call, at)}
        key = metric_key(notebook.check_name(call, "name", name), point)
        return not self._only or key in self._only

    def phase(self, name: str, *, better: Literal["info", "lower"] = "info") -> AbstractContextManager[None]:
        """Time a part of the body as the metric ``phase/<outer>/<name>``, in seconds. Phases nest.

        Inside a ``timed`` or goal loop it becomes a series, one value per timed iteration: the sum if it is entered
        several times in one, 0 if it is not entered. The loop's metric is then part of the path:
        ``phase/step/forward``. A launch's value is the 25th percentile of the iterations that entered it. On CUDA it is
        the device's time, by events on the current stream, without a synchronization inside an iteration. A loop with
        ``mode="graph"`` has no phases. Outside a loop a phase is one number, a name is used once, and both ends
        synchronize with the device.

        Args:
            name: name of the part.
            better: ``info`` explains other metrics; ``lower`` is judged itself.

        Raises:
            RecordingError: an argument is not what is wanted, or the phase was recorded before.
        """
        return self.phase_at(name, better, None)

    def phase_at(
        self, name: str, better: Literal["info", "lower"], at: Mapping[str, Scalar] | None
    ) -> AbstractContextManager[None]:
        """:meth:`phase` at the measured point ``at``, which distinguishes phases of one name; outside of loops only."""
        name = notebook.check_phase(name, better)
        phase = Phase(self.phases, name, better, {**self._common_at, **notebook.check_point(f"phase({name!r})", at)})
        return phase if self.profiler is None else self.profiler.phase(name, phase)

    @contextlib.contextmanager
    def point(self, **at: Scalar) -> Iterator[None]:
        """Record everything inside at this point, for example ``rank.point(seed=3)``."""
        before = self._common_at
        self._common_at = {**before, **notebook.check_point("point(...)", at)}
        try:
            yield
        finally:
            self._common_at = before

    def progress(self, text: str = "", **fields: object) -> None:
        """Show a line while the test runs: ``rank.progress(step=10, loss=0.31)``. Rank 0's lines are shown."""
        if not isinstance(text, str):
            notebook.refuse("progress(...)", "text", text)
        if self.rank == 0:
            line = " ".join(filter(None, [text, *(f"{k} {v}" for k, v in fields.items())]))
            self._line.progress(line.encode(errors="backslashreplace").decode())

    def barrier(self) -> None:
        """Wait for all ranks, without touching the device. A collective call."""
        self._side_group.barrier()

    def note_refusal(self) -> None:
        """Note that the backend refused a collective in all ranks: a later barrier may raise that error once more."""
        self._side_group.was_refused = True

    def agree(self, value: float) -> float:
        """Rank 0's value in every rank; it need not be finite. A collective call."""
        return self._side_group.broadcast(_check_number("agree", value))

    def sum_over_ranks(self, value: float) -> float:
        """The sum of every rank's value, in every rank. A collective call; integers below 2**53 are exact."""
        return self._side_group.reduce([_check_number("sum_over_ranks", value)], dist.ReduceOp.SUM)[0]

    def max_over_ranks(self, values: Sequence[float]) -> list[float]:
        """The maximum over all ranks of each value, in every rank. A collective call; all give equally many values."""
        return self._side_group.reduce(notebook.check_several("max_over_ranks(...)", values), dist.ReduceOp.MAX)

    def gather(self, data: bytes) -> list[bytes]:
        """Every rank's bytes, in every rank. A collective call."""
        return self._side_group.gather(data)

    def take_turn(self) -> None:
        """Wait for this group's turn if two groups run interleaved, block by block (``--distbench-against``).

        Not a collective call, so that no collective is pending, and none times out, while the other group runs.
        """
        if self._takes_turns:
            start = HostClock.perf_counter()
            self._line.take_turn()
            self._waited_s += HostClock.perf_counter() - start

    def own_clock(self) -> float:
        """Current time in seconds, minus the time that this rank has waited for the other group's turns."""
        return HostClock.perf_counter() - self._waited_s

    def align_devices(self) -> None:
        """Enqueue an operation that ends on all ranks' devices at the same time. A collective call."""
        self._side_group.align(self.device)

    def wait_for_queued(self) -> None:
        """Wait for the work that the body left in its device's queue. Errors of it are the body's."""
        if self.device.type != "cuda" or not torch.cuda.is_initialized():
            return
        try:
            torch.cuda.synchronize()
        except Exception as error:
            error.add_note("It came from work that was still on the device's queue when the body had returned.")
            raise

    def synchronize(self) -> None:
        """Wait until the device has finished all queued work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def finish(self) -> None:
        """Called at the end of a script: note numbers that were recorded repeatedly as series."""
        self.notebook.finish()
        self.check_complete()

    def check_complete(self) -> None:
        """Raise RecordingError if a ``timed`` loop was left early: its times would be missing silently."""
        if self._unfinished:
            raise RecordingError(
                f"timed({self._unfinished[0]!r}) was left before its last iteration: nothing was recorded"
            )


def _check_number(call: str, value: object) -> float:
    number = notebook.real(value)
    if number is None:
        notebook.refuse(f"{call}(...)", "a number", value)
    return number
