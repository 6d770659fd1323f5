"""The fixtures ``distbench``, ``collective_sweep`` and ``time_to_accuracy``."""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pytest

from pytest_distbench import collectives
from pytest_distbench.errors import BackendUnavailable, BodyError, ConfigurationError, DistbenchError
from pytest_distbench.markers import Requirement, requirement
from pytest_distbench.outcomes import LaunchFailed, MissingBaseline, Misuse, Regression
from pytest_distbench.records import (
    Better,
    BodyReference,
    Case,
    CaseResult,
    LaunchRecord,
    Measurement,
    Verdict,
)
from pytest_distbench.report import failures
from pytest_distbench.session import MeasureRequest, Session

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext

_WORKLOADS = Path(__file__).parent / "workloads"


class Recorder(Protocol):
    """Where finished cases go; the plugin carries them into the reports."""

    def __call__(self, result: CaseResult) -> None: ...


@dataclass(frozen=True)
class Run:
    """What one ``distbench.run`` or ``measure`` found.

    Attributes:
        result: launches and verdicts as records.
    """

    result: CaseResult

    @property
    def launches(self) -> list[LaunchRecord]:
        """One record per process group."""
        return self.result.launches

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """Verdict per metric key; empty after ``measure``."""
        return {v.metric: v for v in self.result.verdicts}

    def values(self, metric: str) -> list[float | None]:
        """The metric's value in each launch.

        Raises:
            KeyError: no such metric; the message lists those there are.
        """
        found = [m.value for launch in self.launches for m in launch.measurements if m.key == metric]
        if not found:
            known = sorted({m.key for launch in self.launches for m in launch.measurements})
            raise KeyError(f"{metric!r} was not measured; there are {', '.join(known)}")
        return found


class Distbench:
    """The ``distbench`` fixture: runs bodies in process groups and judges what they record.

    Attributes:
        world_size: ranks of this test's process groups.
        device: ``cuda`` with --gpu, else ``cpu``.
    """

    def __init__(self, session: Session, node: pytest.Item, world_size: int, record: Recorder, command: str) -> None:
        self.world_size = world_size
        self.device: Literal["cpu", "cuda"] = "cuda" if session.settings.gpu else "cpu"
        self._session = session
        self._node = node
        self._record = record
        self._command = command
        self._requirement: Requirement = requirement(node.iter_markers())
        self._names: set[str] = set()

    def run(
        self,
        body: Callable[[RankContext], object] | str,
        *,
        params: Mapping[str, Any] | None = None,
        args: Sequence[str] = (),
        launches: int | None = None,
        timeout: float | None = None,
        tolerance: float | Mapping[str, float] | None = None,
        seeds: Sequence[int] = (0,),
        name: str = "",
    ) -> Run:
        """Launch a body, compare with the baseline, and fail the test if it regressed.

        Args:
            body: a function at module level that takes the :class:`RankContext`, or ``"file.py::function"``, or a
                script ``"train.py"`` (paths relative to the test's file).
            params: handed to the body as ``rank.params``; JSON-able. Part of the workload's identity.
            args: command line of a script.
            launches: process groups judged first.
            timeout: seconds one launch may take.
            tolerance: accepted change towards worse, as a fraction, or one per metric name.
            seeds: the body runs once for each, in the same group, with ``rank.seed`` set.
            name: tells several runs of one test apart.

        Raises:
            Regression: a judged metric is worse than its baseline allows.
            LaunchFailed: a rank failed, or the group hung.
            MissingBaseline: there is none, and the policy is ``fail``.
            Misuse: the body or its parameters cannot be handed to the ranks.
        """
        request = self._request(
            body,
            params=params,
            args=args,
            launches=launches,
            timeout=timeout,
            tolerance=tolerance,
            seeds=seeds,
            name=name,
            judged=True,
        )
        result = self._measure(request)
        self._conclude(result)
        return Run(result)

    def measure(
        self,
        body: Callable[[RankContext], object] | str,
        *,
        params: Mapping[str, Any] | None = None,
        args: Sequence[str] = (),
        launches: int | None = None,
        timeout: float | None = None,
        seeds: Sequence[int] = (0,),
        name: str = "",
    ) -> Run:
        """As :meth:`run`, without judging: for numbers that are derived further and given to :meth:`judge`."""
        request = self._request(
            body,
            params=params,
            args=args,
            launches=launches,
            timeout=timeout,
            tolerance=None,
            seeds=seeds,
            name=name or "measure",
            judged=False,
        )
        return Run(self._measure(request))

    def judge(
        self,
        name: str,
        values: Sequence[float] | float,
        *,
        unit: str = "",
        better: Better = "lower",
        tolerance: float | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Run:
        """Judge a derived metric, such as an efficiency, against its own baseline.

        Args:
            name: of the metric.
            values: one per independent repetition (launch); a single number counts as one.
            unit: as in ``rank.record``.
            better: as in ``rank.record``.
            tolerance: accepted change towards worse, as a fraction.
            params: identity of what was derived.
        """
        numbers = [float(v) for v in values] if isinstance(values, Sequence) else [float(values)]
        if not numbers:
            raise Misuse(f"judge({name!r}): no value to judge")
        reference = BodyReference(file="", function=name)
        request = self._assemble(
            reference,
            params=params,
            launches=len(numbers),
            timeout=None,
            tolerance=tolerance,
            seeds=(0,),
            name=name,
            judged=True,
        )
        launches = [
            LaunchRecord(
                index=i,
                outcome="passed",
                wall_s=0.0,
                measurements=[Measurement(name=name, unit=unit, better=better, value=v)],
            )
            for i, v in enumerate(numbers)
        ]
        result = self._guarded(lambda: self._session.judge_given(request, launches))
        self._record(result)
        self._conclude(result)
        return Run(result)

    def _request(self, body: object, *, args: Sequence[str], **options: Any) -> MeasureRequest:
        try:
            reference = locate(body, beside=self._node.path.parent, args=args)
        except BodyError as error:
            raise Misuse(str(error)) from None
        return self._assemble(reference, **options)

    def _assemble(
        self,
        reference: BodyReference,
        *,
        params: Mapping[str, Any] | None,
        launches: int | None,
        timeout: float | None,
        tolerance: float | Mapping[str, float] | None,
        seeds: Sequence[int],
        name: str,
        judged: bool,
    ) -> MeasureRequest:
        settings, wanted = self._session.settings, self._requirement
        if name in self._names:
            raise Misuse(f"this test already has a run named {name!r}: give each its own name=")
        self._names.add(name)
        test, _, bracket = self._node.nodeid.partition("[")
        case_id = bracket.removesuffix("]") + (f":{name}" if name else "")
        first = launches or wanted.launches or settings.launches
        accepted = tolerance if tolerance is not None else wanted.tolerance
        return MeasureRequest(
            nodeid=self._node.nodeid,
            case=Case(
                test=test,
                case_id=case_id,
                world_size=self.world_size,
                backend=settings.backend,
                device=self.device,
                launcher=settings.launcher,
                params=json_able(params or {}) | ({"seeds": list(seeds)} if tuple(seeds) != (0,) else {}),
            ),
            body=reference,
            seeds=tuple(seeds),
            launches=first,
            max_launches=max(first, settings.max_launches),
            timeout_s=timeout or wanted.timeout_s or settings.timeout_s,
            tolerance=accepted if accepted is not None else settings.tolerance,
            default_tolerance=settings.tolerance,
            metrics=wanted.metrics,
            judged=judged,
        )

    def _measure(self, request: MeasureRequest) -> CaseResult:
        result = self._guarded(lambda: self._session.run(request))
        self._record(result)
        last = result.launches[-1]
        if last.outcome == "skipped":
            pytest.skip(last.reason or "all ranks skipped")
        if last.outcome == "failed":
            raise LaunchFailed(failures.launch_text(result))
        return result

    def _guarded(self, work: Callable[[], CaseResult]) -> CaseResult:
        try:
            return work()
        except BackendUnavailable as error:
            pytest.exit(f"--distbench-backend: {error}", returncode=pytest.ExitCode.USAGE_ERROR)
        except DistbenchError as error:
            raise Misuse(str(error)) from None

    def _conclude(self, result: CaseResult) -> None:
        if result.update:
            return
        judged = [v for v in result.verdicts if v.better != "info"]
        if not judged:
            shown = ", ".join(v.metric for v in result.verdicts) or "nothing"
            raise Misuse(
                f"nothing was measured that can be judged: the body recorded {shown}; give what matters to rank.record "
                "with better='lower', 'higher' or 'exact', or use rank.timed"
            )
        update = f"{self._command} --distbench-update"
        if any(v.is_failure for v in judged):
            if self._requirement.xfail_perf:
                pytest.xfail(self._requirement.xfail_perf)
            raise Regression(failures.regression_text(result, update_command=update))
        if all(v.kind == "missing" for v in judged) and self._session.settings.missing != "warn":
            platforms = self._session.store.platforms()
            text = failures.missing_text(result, platforms=platforms, update_command=f"{update}=new")
            if self._session.settings.missing == "skip":
                pytest.skip(text.splitlines()[0])
            raise MissingBaseline(text)


class CollectiveSweep:
    """The ``collective_sweep`` fixture: latency of one collective over message sizes, validated exactly."""

    def __init__(self, distbench: Distbench, max_message_bytes: int | None) -> None:
        self._distbench = distbench
        self._max_message_bytes = max_message_bytes

    def __call__(
        self,
        collective: str,
        *,
        dtype: str = "float32",
        sizes: Sequence[int] | str = "powers",
        iterations: int | None = None,
        warmup: int = 5,
        max_bytes: int | None = None,
        cache: str = "rotate",
        **options: Any,
    ) -> Run:
        """Measure and judge a sweep.

        Args:
            collective: torch name, for example ``all_reduce``.
            dtype: name of the element type.
            sizes: message sizes in bytes, ``"powers"`` (4 B to 64 MiB, doubling) or ``"mlbench"`` (task 0a).
            iterations: timed per size; None: as many as fit a time budget, decided by rank 0, 8 to 100.
            warmup: untimed iterations per size.
            max_bytes: larger sizes are left out; ``--distbench-max-message`` lowers it further.
            cache: ``rotate`` moves through a large buffer so that small messages leave the cache; ``hot`` does not.
            options: as for ``distbench.run``: launches, timeout, tolerance, name.

        Raises:
            Misuse: unknown collective, dtype or preset, or no size left.
        """
        try:
            item = collectives.item_bytes(dtype)
            collectives.collective(collective)
            chosen = _sizes(sizes, item)
        except ConfigurationError as error:
            raise Misuse(str(error)) from None
        if cache not in ("rotate", "hot"):
            raise Misuse(f"cache={cache!r}: known are rotate and hot")
        caps = [cap for cap in (max_bytes, self._max_message_bytes) if cap is not None]
        kept = [size for size in chosen if size >= item and all(size <= cap for cap in caps)]
        if not kept:
            raise Misuse(
                f"no message size left of {len(chosen)}: {dtype} takes {item} B, "
                f"the largest allowed is {min(caps, default=0)} B"
            )
        params = {
            "collective": collective,
            "dtype": dtype,
            "sizes": kept,
            "iterations": iterations,
            "warmup": warmup,
            "cache": cache,
        }
        return self._distbench.run(f"{_WORKLOADS / 'sweep.py'}::collective_sweep", params=params, **options)


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
        **options: Any,
    ) -> Run:
        """Train and judge steps, final accuracy, time and step time; fail if the goal is never reached.

        Args:
            train: body that drives ``rank.goal(..., target=rank.params["goal"])``.
            goal: the target the metric must reach.
            seeds: one training each, with ``rank.seed`` set.
            params: handed to the body beside ``goal``.
            options: as for ``distbench.run``: launches, timeout, tolerance, name.
        """
        return self._distbench.run(train, params={**(params or {}), "goal": goal}, seeds=seeds, **options)


def locate(body: object, *, beside: Path, args: Sequence[str]) -> BodyReference:
    """Find out how a rank can import a body.

    Raises:
        BodyError: it is not importable by name from a file.
    """
    if isinstance(body, str):
        file, separator, function = body.partition("::")
        path = Path(beside, file)
        if not path.is_file():
            raise BodyError(f"body {body!r}: there is no file {path}")
        if separator and not function:
            raise BodyError(f"body {body!r}: no function named after '::'")
        return BodyReference(file=str(path), function=function, arguments=[str(a) for a in args])
    if not inspect.isfunction(body):
        raise BodyError(
            f"body {body!r} is a {type(body).__name__}; "
            "wanted a function at module level, 'file.py::function' or 'script.py'"
        )
    name = body.__qualname__
    if "<" in name:
        raise BodyError(
            f"body {name} in {body.__code__.co_filename}:{body.__code__.co_firstlineno} is defined inside a function: "
            "ranks import the body by name, so move it to module level"
        )
    return BodyReference(file=body.__code__.co_filename, function=name, module=body.__module__)


def json_able(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as they will reach the rank.

    Raises:
        Misuse: a value is not JSON-able; the message names it.
    """
    for key, value in params.items():
        if not isinstance(key, str):
            raise Misuse(f"params: the key {key!r} is no text: ranks get parameters as JSON")
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise Misuse(
                f"params[{key!r}] is not JSON-able: {error}. Ranks get parameters as JSON: pass finite numbers, text, "
                "lists and dicts, and build the rest in the body"
            ) from None
    decoded: dict[str, Any] = json.loads(json.dumps(dict(params)))
    return decoded


def rerun_command(config: pytest.Config, nodeid: str) -> str:
    """The command that runs one case again under the same options."""
    kept = []
    arguments = list(config.invocation_params.args)
    takes_value = {
        "--world-size", "--distbench-world-size", "--distbench-backend", "--distbench-launcher",
        "--distbench-baselines",
        "--distbench-platform", "--distbench-tolerance", "--distbench-max-message",
    }  # fmt: skip
    for i, argument in enumerate(arguments):
        option, separator, _ = str(argument).partition("=")
        if option in ("--gpu", "--distbench-gpu") or (option in takes_value and separator):
            kept.append(str(argument))
        elif option in takes_value:
            kept += [str(a) for a in arguments[i : i + 2]]
    return shlex.join(["pytest", nodeid, *kept])


def _sizes(sizes: Sequence[int] | str, item: int) -> list[int]:
    if sizes == "powers":
        return collectives.power_of_two_sizes(4, 64 * 2**20)
    if sizes == "mlbench":
        return collectives.mlbench_sizes(item)
    if isinstance(sizes, str):
        raise ConfigurationError(
            f"unknown preset of sizes {sizes!r}: known are 'powers' and 'mlbench', or give a list of bytes"
        )
    wrong = [s for s in sizes if not isinstance(s, int) or s < 1]
    if wrong:
        raise ConfigurationError(f"sizes: {wrong[0]!r} is not a number of bytes")
    return list(sizes)
