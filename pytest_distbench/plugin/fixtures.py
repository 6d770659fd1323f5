"""The fixture ``distbench``: runs bodies in process groups and judges what they record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pytest

from pytest_distbench.errors import BackendUnavailable, BodyError, DistbenchError
from pytest_distbench.machine.hardware import scrubbed, scrubbed_arguments
from pytest_distbench.plugin.locate import json_able, locate
from pytest_distbench.plugin.markers import Requirement, requirement
from pytest_distbench.plugin.outcomes import LaunchFailed, MissingBaseline, Misuse, NotStored, Regression, Unaccepted
from pytest_distbench.plugin.rerun import test_and_id
from pytest_distbench.records.case import Case
from pytest_distbench.records.kinds import Better
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import Measurement
from pytest_distbench.records.plan import BodyReference
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.verdict import Verdict
from pytest_distbench.records.wire import XFAILED
from pytest_distbench.report import case_text, pair_text
from pytest_distbench.report.escape import printable
from pytest_distbench.run.loop import Session
from pytest_distbench.run.request import MeasureRequest

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext


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

    def __init__(
        self,
        session: Session,
        node: pytest.Item,
        world_size: int,
        record: Recorder,
        command: str,
        lend_terminal: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.world_size = world_size
        self.device: Literal["cpu", "cuda"] = "cuda" if session.settings.gpu else "cpu"
        self._session = session
        self._node = node
        self._record = record
        self._command = command
        self._lend_terminal = lend_terminal
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
            Unaccepted: none is, but a verdict is of a kind that the run was told not to accept.
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
        if better not in ("higher", "lower", "exact", "info"):
            raise Misuse(
                f"judge({name!r}): better={better!r}; wanted higher, lower, exact or info. What a seed's training "
                "gave is recorded in its body, with rank.record"
            )
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
        if settings.attach is not None and settings.attach >= self.world_size:
            pytest.skip(f"--distbench-attach {settings.attach}: this test has ranks 0 to {self.world_size - 1}")
        if name in self._names:
            raise Misuse(f"this test already has a run named {name!r}: give each its own name=")
        self._names.add(name)
        test, bracket = test_and_id(self._node)
        case_id = bracket + (f":{name}" if name else "")
        first = launches or wanted.launches or settings.launches
        accepted = tolerance if tolerance is not None else wanted.tolerance
        try:
            given = json_able(params or {})
        except BodyError as error:
            raise Misuse(str(error)) from None
        identity = scrubbed(given)
        if tuple(seeds) != (0,):
            identity["seeds"] = list(seeds)
        if reference.arguments:
            identity["args"] = scrubbed_arguments(reference.arguments)
        return MeasureRequest(
            nodeid=self._node.nodeid,
            case=Case(
                test=test,
                case_id=case_id,
                world_size=self.world_size,
                backend=settings.backend,
                device=self.device,
                launcher=settings.launcher,
                params=identity,
            ),
            params=given,
            body=reference,
            seeds=tuple(seeds),
            launches=first,
            max_launches=max(first, settings.max_launches),
            timeout_s=timeout or wanted.timeout_s or settings.timeout_s,
            tolerance=accepted if accepted is not None else settings.tolerance,
            default_tolerance=settings.tolerance,
            metrics=wanted.metrics,
            judged=judged,
            xfail_perf=wanted.xfail_perf or "",
        )

    def _measure(self, request: MeasureRequest) -> CaseResult:
        with self._lend_terminal():
            result = self._guarded(lambda: self._session.run(request))
        self._record(result)
        last = result.launches[-1]
        if last.outcome == "skipped":
            stand_down = pytest.xfail if all(f.error and f.error.kind == XFAILED for f in last.fates) else pytest.skip
            stand_down(printable(last.reason) or "all ranks skipped")
        if last.outcome == "failed":
            raise LaunchFailed(case_text.launch_text(result, rerun_command=self._command))
        return result

    def _guarded(self, work: Callable[[], CaseResult]) -> CaseResult:
        try:
            return work()
        except BackendUnavailable as error:
            pytest.exit(f"--distbench-backend: {error}", returncode=pytest.ExitCode.USAGE_ERROR)
        except DistbenchError as error:
            raise Misuse(str(error)) from None

    def _conclude(self, result: CaseResult) -> None:
        if result.update in ("new", "changed", "kept") or self._session.settings.attach is not None:
            return
        judged = [v for v in result.verdicts if v.is_judged]
        if not judged:
            shown = ", ".join(v.metric for v in result.verdicts) or "nothing"
            raise Misuse(
                f"nothing was measured that can be judged: the body recorded {shown}; give what matters to rank.record "
                "with better='lower', 'higher' or 'exact', or use rank.timed"
            )
        if result.update == "refused":
            raise NotStored(case_text.refused_text(result))
        update = f"{self._command} --distbench-update"
        if any(v.is_failure for v in judged):
            if result.xfail_perf:
                pytest.xfail(printable(result.xfail_perf))
            if result.against:
                raise Regression(pair_text.regression_text(result, rerun_command=self._command))
            raise Regression(case_text.regression_text(result, update_command=update))
        unaccepted = [v for v in judged if v.kind in self._session.settings.also_failing]
        if unaccepted:
            if result.against:
                raise Unaccepted(pair_text.unaccepted_text(result, unaccepted, rerun_command=self._command))
            raise Unaccepted(case_text.unaccepted_text(result, unaccepted, update_command=update))
        if all(v.kind == "missing" for v in judged) and self._session.settings.missing != "warn":
            platforms = self._session.store.platforms()
            text = case_text.missing_text(result, platforms=platforms, update_command=f"{update}=new")
            text = pair_text.missing_text(result) if result.against else text
            if self._session.settings.missing == "skip":
                pytest.skip(text.splitlines()[0])
            raise MissingBaseline(text)
