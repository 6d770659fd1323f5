"""The fixtures of trainings. ``time_to_accuracy``: how long does a training take to its goal?

``scaling``: how well do n workers do compared to one, and how much of a step waits for communication?
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from pytest_distbench.errors import DistbenchWarning
from pytest_distbench.plugin.arguments import Arguments, Called, ShapeKeywords
from pytest_distbench.plugin.distbench import Distbench
from pytest_distbench.plugin.outcomes import Run
from pytest_distbench.records.iteration import SAMPLES
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.workloads import EFFICIENCY
from pytest_distbench.workloads.tables.scaling import CALL

if TYPE_CHECKING:
    from pytest_distbench.records.launch import LaunchRecord
    from pytest_distbench.worker.context import RankContext

MODES = ("weak", "strong")

COMPUTING_SHARE = "computing_share"
DERIVED = (EFFICIENCY, COMPUTING_SHARE)  # what is judged of the runs together, at each number of workers above one


class Scaling:
    """The ``scaling`` fixture: one training on every number of workers, with alternating launches."""

    def __init__(self, distbench: Distbench) -> None:
        self._distbench = distbench

    def __call__(
        self,
        train: Callable[[RankContext], object] | str,
        *,
        mode: str = "weak",
        params: Mapping[str, Any] | None = None,
        of: str = "step",
        oversubscribed: bool = False,
        cpus: float | None = None,
        **options: Unpack[ShapeKeywords],
    ) -> list[Run]:
        """Judge the step on one worker, two, four and so on, and the metrics derived from them.

        It runs every size from 1 up to the test's ranks, doubling, and the test's ranks. It also runs one worker
        without communication, *1 (local)*, and each larger size without communication. Every run is judged as by
        ``distbench.run``, and for each size of more than one worker

        - ``scaling_efficiency[workers=n]``: the time of a step on *1 (local)* over that on n workers; under ``strong``,
          whose steps have an n-th of the samples, over n times that.
        - ``computing_share[workers=n]``: the time of a step without communication over that with it. The difference to
          1 is exposed communication, which does not overlap with computing.

        Args:
            train: body that times the loop ``of`` and uses :func:`~pytest_distbench.workloads.gradients.parallel`.
            mode: ``weak``: ``batch`` is a worker's; ``strong``: of all workers together.
            params: parameters of the body; ``batch``, an integer, is required.
            of: the loop whose time is compared.
            oversubscribed: whether there may be more ranks than cores, as for ``distbench.run``.
            cpus: CPU quota of each rank in cores, as for ``distbench.run``.

        Returns:
            The runs with communication, one per size.

        Raises:
            Regression, BeyondBound, LaunchFailed, Misuse: as ``distbench.run``; Misuse also where no such loop was
                timed, ranks of two runs had different numbers of threads, or one communicates that should not.
        """
        distbench = self._distbench
        distbench.skip_without_timings("scaling compares times")
        given = distbench.arguments("scaling")
        given.keywords(options, self.__call__, ShapeKeywords)
        given.choice("mode", mode, MODES)
        of = given.text("of", of)
        most = given.ranks(options.get("world_size"), distbench.world_size)
        name = given.text("name", options.get("name", ""), may_be_empty=True, without="@")
        of_runs = options.get("tolerance")
        own: dict[str, float] = {}
        if isinstance(of_runs, Mapping):
            own = {name: of_runs[name] for name in DERIVED if name in of_runs}
            of_runs = {name: fraction for name, fraction in of_runs.items() if name not in own} or None
        elif of_runs is not None:
            own = dict.fromkeys(DERIVED, of_runs)
        sizes = sorted({most, *(2**power for power in range(most.bit_length()) if 2**power < most)})
        asked = [(1, "off"), *((size, "on") for size in sizes), *((size, "off") for size in sizes if size > 1)]
        own_params = given.mapping("params", {} if params is None else params)
        of_call = {CALL: name} if name else {}
        batches = {size: _batch(given, own_params, size if mode == "strong" else 1) for size in sizes}
        wanted = [
            Called(
                body=train,
                argument="train",
                params={**own_params, "batch": batches[size], "communication": how, **of_call},
                world_size=size,
                name=f"{name} {'workers' if how == 'on' else 'local' if size == 1 else 'apart'}".strip(),
                launches=options.get("launches"),
                timeout=options.get("timeout"),
                tolerance=of_runs,
                network=options.get("network"),
                oversubscribed=oversubscribed,
                cpus=cpus,
            )
            for size, how in asked
        ]

        check = partial(_check_loop, given, of)
        runs = dict(zip(asked, distbench.run_interleaved(given, wanted, check_first=check), strict=True))
        for run in runs.values():
            check(run.result.case.label, run.launches[0])
        _check_runs(given, runs, of, of_runs)
        if most == 1:
            said = "no efficiency was judged: it needs two or more workers. Next: --world-size 2 or more"
            warnings.warn(DistbenchWarning(f"scaling: {said}"), stacklevel=2)
        for size in sizes[1:]:
            share = size if mode == "strong" else 1
            # metric -> what a step is compared with, and the part of a step of it that is to be as long
            derived = {EFFICIENCY: (runs[1, "off"], 1 / share), COMPUTING_SHARE: (runs[size, "off"], 1.0)}
            for metric, (other, part) in derived.items():
                distbench.judge(
                    f"{name} {metric}".strip(),
                    lambda less, more, part=part: part * less[of] / more[of],
                    of=[other, runs[size, "on"]],
                    better="higher",
                    at={"workers": size},
                    tolerance=own.get(metric),
                )
        return [runs[size, "on"] for size in sizes]


class TimeToAccuracy:
    """The ``time_to_accuracy`` fixture: short trainings to a goal, once per seed, in one process group."""

    def __init__(self, distbench: Distbench) -> None:
        self._distbench = distbench

    def __call__(
        self,
        train: Callable[[RankContext], object] | str,
        *,
        goal: float,
        seeds: Sequence[int] = (0,),
        params: Mapping[str, Any] | None = None,
        **options: Unpack[ShapeKeywords],
    ) -> Run:
        """Train and judge steps, final accuracy, time and step time; fail if the goal is never reached.

        Args:
            train: body that drives ``rank.goal(..., target=rank.params["goal"])``.
            goal: the target that the metric must reach.
            seeds: one training each, with ``rank.seed`` set.
            params: parameters of the body, besides ``goal``.
        """
        given = self._distbench.arguments("time_to_accuracy")
        given.keywords(options, self.__call__, ShapeKeywords)
        target = given.number("goal", goal)
        parameters = given.mapping("params", params if params is not None else {})
        if "goal" in parameters:
            given.refuse("params contains 'goal', which is an argument of its own")
        params = {**parameters, "goal": target}
        wanted = Called(body=train, params=params, seeds=seeds, argument="train", **options)
        return self._distbench.path.run(given, wanted)


def _batch(given: Arguments, found: Mapping[str, Any], parts: int) -> int:
    if taken := {"communication", CALL} & found.keys():
        given.refuse(f"params contains {taken.pop()!r}, which scaling sets itself")
    if "batch" not in found:
        given.refuse(
            "params has no 'batch': the samples of a step, of a worker (weak) or of all together (strong). Next: give "
            'params={"batch": 64}, and take it in the body from rank.params["batch"]'
        )
    batch = given.whole("params['batch']", found["batch"], least=1)
    if batch % parts:
        given.refuse(f"params['batch']={batch} cannot be shared evenly by {parts} workers; give a multiple of {parts}")
    return batch // parts


def _check_loop(given: Arguments, of: str, label: str, launch: LaunchRecord) -> None:
    timed = [m.key for m in launch.measurements if m.unit == "s" and not m.is_phase]
    if of not in timed:
        given.refuse(f"of={of!r}: {label} timed no such loop; wanted one of {', '.join(timed) or 'rank.timed(...)'}")


def _check_runs(given: Arguments, runs: Mapping[tuple[int, str], Run], of: str, tolerance: object) -> None:
    """Refuse runs that cannot be compared, and a tolerance that would have no effect."""
    by_threads: dict[str, list[str]] = {}
    by_samples: dict[float, list[str]] = {}
    for run in runs.values():
        launch, case = run.launches[0], run.result.case
        by_threads.setdefault(launch.software.get("threads", ""), []).append(case.label)
        samples = next((m.value for m in launch.measurements if m.name == SAMPLES), None)
        if samples is not None:
            by_samples.setdefault(samples / (case.world_size * case.params["batch"]), []).append(case.label)
    if len(by_threads) > 1:
        said = "; ".join(f"{threads} in {', '.join(labels)}" for threads, labels in by_threads.items())
        given.refuse(
            f"ranks of different runs had different numbers of threads, so their times cannot be compared: {said}. "
            "Next: set OMP_NUM_THREADS for the whole run, and set no number of threads in the body"
        )
    for (_, how), run in runs.items():
        seen = run.launches[0].fingerprints.get(of) if how == "off" else None
        entered = dict.fromkeys(c.op for each in seen.collectives.values() for c in each) if seen is not None else {}
        if entered:
            given.refuse(
                f"{run.result.case.label} must be without communication, and its step calls {', '.join(entered)}. "
                "Next: take the model from parallel(rank, model) of pytest_distbench.workloads.gradients, and call no "
                "collective yourself if rank.params['communication'] is 'off'"
            )
    if len(by_samples) > 1:
        said = "; ".join(f"{samples:g} in {', '.join(labels)}" for samples, labels in by_samples.items())
        given.refuse(
            f"the samples of a step that record_rate received do not follow params['batch']: a sample of it is {said}. "
            "Next: take the batch of a worker from rank.params['batch'], which is smaller on more workers in "
            "mode='strong'"
        )
    judged = [verdict for run in runs.values() for verdict in run.verdicts.values()]
    known = {verdict.name for verdict in judged if not METRIC_KINDS[verdict.better].is_exact}
    unknown = [name for name in (tolerance if isinstance(tolerance, Mapping) else ()) if name not in known]
    if unknown:
        there = ", ".join(sorted({*known, *DERIVED}))
        given.refuse(f"tolerance[{unknown[0]!r}]: nothing of that name has one; wanted one of {there}")
