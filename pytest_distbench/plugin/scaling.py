"""The fixture ``scaling``: how well n workers do beside one, and what they wait for."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Unpack

from pytest_distbench.errors import DistbenchWarning, show
from pytest_distbench.plugin.arguments import Arguments
from pytest_distbench.plugin.distbench import Distbench
from pytest_distbench.plugin.keywords import ScalingKeywords
from pytest_distbench.plugin.room import check_room
from pytest_distbench.plugin.runs import Run
from pytest_distbench.records.scaling import (
    ALONE,
    COMMUNICATION,
    COMPUTATION,
    EFFICIENCY,
    LOCAL,
    MODE,
    MODES,
    OF,
    RATE,
    SENT,
    TOGETHER,
    WORKERS,
)
from pytest_distbench.run.settings import Settings

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """What one call of ``scaling`` found, by the number of workers.

    Attributes:
        local: one worker without communication.
        together: workers that communicate.
        alone: as many workers, from two on, without communication.
        efficiency: judged: what each of them does beside the one worker.
        computation: judged: the share of a step that is left without communication.
    """

    local: Run
    together: Mapping[int, Run]
    alone: Mapping[int, Run]
    efficiency: Mapping[int, Run]
    computation: Mapping[int, Run]


class Scaling:
    """The ``scaling`` fixture: one training on 1, 2, 4, ... workers, in turns."""

    def __init__(self, distbench: Distbench, settings: Settings) -> None:
        self._distbench = distbench
        self._settings = settings

    def __call__(
        self,
        body: Callable[[RankContext], object] | str,
        *,
        mode: Literal["weak", "strong"],
        params: Mapping[str, Any],
        up_to: int | None = None,
        **options: Unpack[ScalingKeywords],
    ) -> Scaled:
        """Train on every number of workers from 1 on, doubling, and on the largest; judge efficiency and what is sent.

        Each number of workers trains with communication, from two on without it besides; one worker without it,
        *1 (local)*, is what all are compared with. The body finds ``rank.params["communication"]``, ``on`` or ``off``,
        and in ``rank.params["batch"]`` the samples of each worker, and records ``samples_per_second`` of all workers
        together: ``parallel`` and ``record_rate`` of ``pytest_distbench.workloads.scaling`` do both. Judged at each
        number of ``workers`` from two on are ``scaling_efficiency``, ``computation_share`` (a step without
        communication over one with it), and, exactly, ``collectives`` and ``sent_bytes`` of a step where they are
        recorded.

        Args:
            body: a function at module level that takes the :class:`RankContext`, or ``"file.py::function"``.
            mode: ``weak``: ``batch`` is of each worker. ``strong``: it is of all together, and is split.
            params: handed to the body; ``batch`` is among them.
            up_to: most workers. Default: the test's ranks. More than the run has need ``oversubscribed=True``.

        Raises:
            Misuse: an argument cannot be used, a batch cannot be split, the body does not record its rate, or the ranks
                of two runs had different numbers of threads.
            Regression, BeyondBound, Unaccepted, MissingBaseline: as of ``distbench.judge``.
            LaunchFailed: a rank failed, or the group hung.
        """
        self._distbench.skip_without_clocks("scaling compares rates")
        given = self._distbench.arguments("scaling")
        given.keywords(options, self.__call__, ScalingKeywords)
        given.choice("mode", mode, MODES)
        most = given.ranks(up_to, self._distbench.world_size)
        check_room(given, self._settings, most, "ranks", oversubscribed=options.get("oversubscribed", False))
        sizes = sizes_up_to(most)
        batches = _batches(given, mode, params, sizes)
        tolerance = options.pop("tolerance", None)
        if tolerance is not None:
            tolerance = given.tolerance(tolerance)
        name = given.text("name", options.pop("name", ""), may_be_empty=True, without="@[]=,")

        def measure(role: str, size: int, communication: str) -> Run:
            return self._distbench.measure(
                body,
                world_size=size,
                params={**params, "batch": batches[size], COMMUNICATION: communication, MODE: mode},
                name=f"{name}-{role}" if name else role,
                **options,  # type: ignore[misc] # what is left are keywords of measure
            )

        def judge(metric: str, of: Sequence[Run], size: int, make: Callable[..., float | None], better: str) -> Run:
            return self._distbench.judge(
                metric,
                make,
                of=of,
                unit=SENT.get(metric, ""),
                better=better,
                tolerance=_tolerance_of(tolerance, metric) if better == "higher" else None,
                at={**({OF: name} if name else {}), WORKERS: size},
                params={**params, MODE: mode},
            )

        local = measure(LOCAL, 1, "off")
        together = {size: measure(TOGETHER, size, "on") for size in sizes}
        alone = {size: measure(ALONE, size, "off") for size in sizes if size > 1}
        _check_threads(given, {LOCAL: local, **_named(TOGETHER, together), **_named(ALONE, alone)})
        if not alone:
            told = "nothing was judged: one worker is compared with nobody. Next: --world-size 2 or more"
            warnings.warn(DistbenchWarning(f"scaling: {told}"), stacklevel=2)
        for metric in SENT:
            for size in [size for size in alone if _has(together[size], metric)]:
                judge(metric, [together[size]], size, lambda on, metric=metric: on[metric], "exact")
        computation = {
            size: judge(
                COMPUTATION, [alone[size], together[size]], size, lambda off, on: on[RATE] / off[RATE], "higher"
            )
            for size in alone
        }
        efficiency = {
            size: judge(
                EFFICIENCY,
                [local, together[size]],
                size,
                lambda one, several, size=size: several[RATE] / (size * one[RATE]),
                "higher",
            )
            for size in alone
        }
        return Scaled(local=local, together=together, alone=alone, efficiency=efficiency, computation=computation)


def sizes_up_to(most: int) -> list[int]:
    """1, 2, 4, ... and the largest itself."""
    return [*(2**i for i in range(most.bit_length()) if 2**i < most), most]


def _batches(given: Arguments, mode: str, params: object, sizes: Sequence[int]) -> dict[int, int]:
    """Samples of each worker, by the number of workers."""
    known = given.mapping("params", params)
    if taken := [name for name in (COMMUNICATION, MODE) if name in known]:
        given.refuse(f"params holds {taken[0]!r}, which the fixture itself hands to the body: leave it out")
    whose = "each worker" if mode == "weak" else "all workers together"
    if "batch" not in known:
        given.refuse(f"params={show(dict(known))} has no 'batch'; wanted the samples of {whose} in a step")
    batch = given.whole("params['batch']", known["batch"], least=1)
    if mode == "weak":
        return dict.fromkeys(sizes, batch)
    if odd := [size for size in sizes if batch % size]:
        given.refuse(
            f"params['batch']={batch} are the samples of {whose}, and cannot be split over {odd[0]}; wanted a "
            f"number that {', '.join(map(str, sizes))} divide, or mode='weak'"
        )
    return {size: batch // size for size in sizes}


def _tolerance_of(tolerance: float | Mapping[str, float] | None, metric: str) -> float | None:
    return tolerance.get(metric) if isinstance(tolerance, Mapping) else tolerance


def _named(role: str, runs: Mapping[int, Run]) -> dict[str, Run]:
    return {f"{role}@ws{size}": run for size, run in runs.items()}


def _has(run: Run, metric: str) -> bool:
    return any(m.key == metric for m in run.samples.launches[0].measurements)


def _check_threads(given: Arguments, runs: Mapping[str, Run]) -> None:
    """Refuse ranks that computed with different numbers of threads: their rates say nothing of each other."""
    found: dict[str, list[str]] = {}
    for name, run in runs.items():
        found.setdefault(run.samples.launches[0].software.get("threads", ""), []).append(name)
    if len(found) > 1:
        told = "; ".join(f"{threads} in {', '.join(names)}" for threads, names in found.items())
        given.refuse(
            f"ranks of different runs had different numbers of threads, so their rates cannot be compared: {told}. "
            "Next: set OMP_NUM_THREADS for the whole run, and torch.set_num_threads in no body"
        )
