"""RankContext: what a body is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import get_args

from pytest_distbench.errors import RecordingError, show
from pytest_distbench.records.kinds import Better
from pytest_distbench.records.metric import Scalar
from pytest_distbench.records.wanted import MODES, Mode, OverRanks
from pytest_distbench.worker.clock.iterations import time_iterations
from pytest_distbench.worker.goal import Goal
from pytest_distbench.worker.member import Member
from pytest_distbench.worker.notebook import check_choice, check_metric, check_point, check_scalars, check_whole, refuse


class RankContext(Member):
    """The rank's view of its launch, and the place where it puts what it measures.

    Attributes:
        rank: this process in the group, 0 to world_size - 1.
        local_rank: this process on its host.
        world_size: processes in the group.
        node: index of the host.
        device: ``torch.device`` of this rank.
        backend: of the process group.
        params: what ``distbench.run(params=...)`` got.
        seed: the same in every rank and launch.
        launch: index of this launch in its case.
        data_dir: folder shared by the launches of this run.
        watch: takes the fingerprints.
        delay: delays the timed code, for a positive control.
        only_structure: this process represents one rank on the backend ``fake``: timings and values mean nothing.
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
            name: of the metric, in seconds; lower is better.
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
        name = check_metric(call, name)
        warmup = check_whole(call, "warmup", warmup, least=0)
        iterations = check_whole(call, "iterations", iterations, least=1)
        identity, facts = check_scalars(call, "identity", identity), check_scalars(call, "facts", facts)
        point = {**self._common_at, **check_point(call, at)}
        if before is not None and not callable(before):
            refuse(call, "before to be a function of the iteration's index, or None", before)
        identity = self._with_mode(call, mode, warmup, identity)
        if check_choice(call, "over_ranks", over_ranks, get_args(OverRanks)) != "max":
            identity = {**identity, "over_ranks": over_ranks}
        label = self.notebook.expect_new(name, point)
        self._unfinished.append(label)

        def run() -> Iterator[int]:
            with self.phases.loop(name, point, is_captured=mode == "graph") as loop:
                times, meter = yield from time_iterations(
                    self, loop, label, mode=mode, warmup=warmup, iterations=iterations, before=before
                )
                self._unfinished.remove(label)
                self.record_times(name, times, meter, at=point, identity=identity, facts=facts, over_ranks=over_ranks)

        return run()

    def _with_mode(self, call: str, mode: Mode, warmup: int, identity: dict[str, Scalar]) -> dict[str, Scalar]:
        """The identity of a loop with its mode; the usual one stands there only where the body names it."""
        check_choice(call, "mode", mode, MODES)
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
