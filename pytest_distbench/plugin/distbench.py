"""The fixture ``distbench``: the calls of a test, which ``plugin/path.py`` leads to their verdicts."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Unpack

import pytest

from pytest_distbench.errors import show
from pytest_distbench.judging.bounds import check_measured, plausible
from pytest_distbench.plugin import carry
from pytest_distbench.plugin.arguments import Arguments, Called, RunKeywords, ShapeKeywords
from pytest_distbench.plugin.names import rerun_command, test_and_id
from pytest_distbench.plugin.outcomes import CAUGHT, Failure, Regression, Run, end_test, unjudged
from pytest_distbench.plugin.path import CasePath
from pytest_distbench.plugin.requests import RequestMaker
from pytest_distbench.records.case import OVERSUBSCRIBED
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import BoundValue, Sample, Scalar
from pytest_distbench.records.options import FAKE
from pytest_distbench.records.plan import Work
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.verdicts import lost_text
from pytest_distbench.run.comparisons import Nothing
from pytest_distbench.run.request import CaseRequest
from pytest_distbench.run.session import Session
from pytest_distbench.run.sources import DerivedNumbers, GivenNumbers, Source, SourceFailed
from pytest_distbench.units import why_impossible

Body = Callable[..., object] | str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A function that takes the :class:`RankContext`, ``"file.py::function"``, a script, or a command as a list."""

_Found = TypeVar("_Found")


class Distbench:
    """The ``distbench`` fixture: runs bodies in process groups and judges what they record."""

    def __init__(self, session: Session, node: pytest.Item, world_size: int, backend: str) -> None:
        self.world_size = world_size
        self.backend = backend
        self.device: Literal["cpu", "cuda"] = "cuda" if session.settings.gpu else "cpu"
        self.data: str = session.settings.added.get("data", "")
        self._session = session
        self._node = node
        self.ask = RequestMaker(
            session.settings,
            node,
            world_size=world_size,
            backend=backend,
            around=lambda request: self.path.do(session.launching.surroundings.conditions, request),
        )
        self.path = CasePath(session, node, self.ask)
        self._checks = 0

    def run(self, body: Body | None = None, **options: Unpack[RunKeywords]) -> Run:
        """Launch a body, compare with the baseline, and fail the test if it regressed.

        The workload's identity is ``params``, ``args``, ``env`` and ``seeds``, without the paths of this machine.

        Args:
            body: a function that takes the :class:`RankContext`, a method, or ``"file.py::function"``; a script
                ``"train.py"``; or a command that starts its processes itself: ``["accelerate", "launch", "train.py"]``.

        Raises:
            Regression: a judged metric is worse than its baseline allows.
            BeyondBound: a metric is beyond a bound that was set for it.
            Unaccepted: none is, but an option makes the verdict of another kind fail (--distbench-strict).
            LaunchFailed: a rank failed, or the group hung.
            MissingBaseline: there is none, and the policy is ``fail``.
            Misuse: an argument cannot be used, or the body or its parameters cannot be handed to the ranks.
        """
        given = self.arguments("distbench.run")
        given.keywords(options, self.run, RunKeywords)
        return self.path.run(given, Called(body=body, **options))

    def run_work(self, call: str, work: Work, *, identity: Mapping[str, Any], **options: Unpack[ShapeKeywords]) -> Run:
        """Run work of a kind that was added to ``LAUNCH_KINDS``; otherwise as :meth:`run`.

        Args:
            call: the name of the call in errors.
            work: what to launch.
            identity: the parameters that identify the case; JSON-able.
            options: keywords as for :meth:`run`: world_size, launches, timeout, tolerance, name.
        """
        given = self.arguments(call)
        given.keywords(options, self.run_work, ShapeKeywords)
        wanted = Called(work=work, identity=self.ask.identity(given, identity), **options)
        ranks = given.ranks(wanted.world_size, self.world_size)
        return self.run_request(self.ask.launch(given, wanted, world_size=ranks))

    def run_interleaved(
        self,
        given: Arguments,
        wanted: Sequence[Called],
        *,
        check_first: Callable[[str, LaunchRecord], None] = lambda label, launch: None,
    ) -> list[Run]:
        """Run several cases whose launches alternate: one of each, then one of each again.

        ``check_first`` gets the label of the first case and its first launch, if that passed, before others are made:
        it may fail the test early.
        """
        path, session = self.path, self._session
        runs = [path.begin(self.ask.run(given, one)) for one in wanted]
        sources = [run.source for run in runs]
        if path.rerun is None:
            first = max(run.request.launches for run in runs)
            launches = first if session.settings.judges else 1
            count = max(self._alternating(launches, known) for known in sources)
            ranks = max(run.request.case.world_size for run in runs)

            def launch_all() -> None:
                with contextlib.suppress(SourceFailed):  # its own verdict reports it
                    session.measure(sources[:1], 1, ranks)
                    if (launch := sources[0].launches[0]).outcome == "passed":
                        check_first(runs[0].request.case.label, launch)
                    session.measure(sources, count, ranks)

            path.do(launch_all)
        return [path.judge(run) for run in runs]

    def _alternating(self, launches: int, source: Source) -> int:
        """Number of launches of a case that alternate with those of others; of an update all."""
        settings = self._session.settings
        update = (settings.update_launches or settings.max_launches) if settings.update else 0
        return max(launches, int(min(update, source.most_stored)))

    def run_request(self, request: CaseRequest) -> Run:
        """Run a request that :attr:`ask` made; otherwise as :meth:`run`."""
        return self.path.judge(self.path.begin(request))

    def measure(self, body: Body | None = None, **options: Unpack[RunKeywords]) -> Run:
        """Measure without judging: for numbers that :meth:`judge` derives from several runs.

        The first launch is made at once. Further ones are made when they are needed, and alternate with those of the
        other measured runs of the test.
        """
        given = self.arguments("distbench.measure")
        given.keywords(options, self.measure, RunKeywords, but=("tolerance",))
        wanted = Called(body=body, **options)
        request = self.ask.run(given, wanted if wanted.name else dataclasses.replace(wanted, name="measure"))
        run = self.path.begin(request)
        run.measure = lambda run: self.path.end(run, self._measured(run))
        self._add_launches([run], 1)
        return run

    def check(self, body: Body | None = None, **options: Unpack[RunKeywords]) -> Run:
        """Launch a body once and judge nothing: for tests of correctness, which only use asserts.

        The test can read what the body records; it is neither compared nor stored. A test may call this several times:
        save with 2 ranks, load with 4.

        Raises:
            LaunchFailed: a rank failed, or the group hung.
            Misuse: an argument cannot be used.
        """
        self._checks += 1
        self.skip_without_timings("distbench.check needs values")
        given = self.arguments("distbench.check")
        given.keywords(options, self.check, RunKeywords, but=("launches", "name", "tolerance"))
        wanted = dataclasses.replace(Called(body=body, **options), launches=1, name=f"check{self._checks}")
        request = self.ask.run(given, wanted)
        assert request.launched is not None
        run = self.path.begin(request, self._session.launches_of(request.launched))
        self.path.end(run, self.path.compare(run, Nothing(request)))
        return run

    def judge(
        self,
        name: str,
        values: Sequence[float] | float | Callable[..., float | None],
        *,
        of: Sequence[Run] | Run = (),
        unit: str = "",
        better: str = "lower",
        tolerance: float | None = None,
        at: Mapping[str, Scalar] | None = None,
        params: Mapping[str, Any] | None = None,
        at_most: BoundValue | None = None,
        at_least: BoundValue | None = None,
    ) -> Run:
        """Judge a derived number, such as an efficiency, against its own baseline.

        Args:
            name: name of the metric.
            values: a function from one mapping (metric -> value) per run in ``of`` to the number of a launch, or None;
                or the numbers themselves, one per repetition.
            of: runs of this test that the function gets.
            unit: unit of the number, as in ``rank.record``.
            better: how the number is judged, as in ``rank.record``.
            tolerance: accepted change for the worse: 0.1 or "10 %".
            at: the point; it distinguishes metrics of one name.
            params: parameters that identify the number.
            at_most: a bound: the test fails if the value is above it. A number in ``unit``, or a text with its unit:
                ``"200us"``.
            at_least: a bound: the test fails if the value is below it.

        Raises:
            BeyondBound, Regression, Unaccepted, NotStored, MissingBaseline, Misuse: as :meth:`run`.
            LaunchFailed: a rank of a launch that was added failed.
        """
        given = self.arguments("distbench.judge")
        given.metric_name("name", name)
        given = self.arguments(f"distbench.judge({name!r})")
        unit = given.text("unit", unit, may_be_empty=True)
        metric = Sample(
            name=name,
            unit=unit,
            better=given.derived_kind(better),
            value=None,
            at=given.point({} if at is None else at),
            bounds=given.bounds(at_least, at_most, unit=unit),
        )
        metric = replace(metric, bounds=metric.bounds or list(plausible(metric)))
        if tolerance is not None and METRIC_KINDS[metric.better].is_exact:
            given.refuse(f"tolerance={show(tolerance)} has no effect with better={better!r}, which is compared exactly")
        runs = [of] if isinstance(of, Run) else of
        source = self._derived_samples(given, metric, values, runs)
        around = _around(runs or self.path.runs)
        wanted = Called(
            name=metric.key,
            identity=self.ask.identity(given, params),
            launches=None if callable(values) else int(source.most),
            tolerance=None if tolerance is None else given.fraction("tolerance", tolerance),
        )
        request = self.ask.derived(given, wanted, around)
        run = self.path.begin(request, source, made_of=runs)
        if OVERSUBSCRIBED in around and metric.is_noisy:
            self.path.end(run, self.path.compare(run, Nothing(request)))
            return run
        if not metric.is_judged and not metric.bounds:
            given.refuse(f"better={better!r} is judged only by a bound: give at_most= or at_least=, or another better=")
        return self.path.judge(run)

    def arguments(self, call: str) -> Arguments:
        """The check of the arguments of a call in this test."""
        return Arguments(call, self._node.path)

    def skip_without_timings(self, why: str) -> None:
        """Skip the test on the backend ``fake``, which has neither timings nor values."""
        if self.ask.only_structure:
            pytest.skip(f"not run: {why}, and the {FAKE} backend has neither timings nor values")

    def note_measured(self) -> None:
        """Hand the measured cases to the test's report, whether it passes or fails."""
        for run in self._measured_runs:
            if run.source.launches and not run.source.failed:
                carry.keep_case(self._node, unjudged(self._session, run))

    def raise_caught(self) -> None:
        """Raise the first failure that the test has caught, if any."""
        for result in self.path.ended:
            if result.outcome == "failed" and result.reference.kind != "nothing":  # a check may have to fail
                try:
                    end_test(self._node, self._session, result)
                except Failure as failure:
                    raise type(failure)(f"{failure.msg}\n\n{CAUGHT}") from None

    def finish(self) -> None:
        """Make the launches of measured runs that a passed test did not use, and check that it judged all it should.

        Raises:
            Regression, ...: the failure that the test has caught.
            Misuse: its marker has a bound for a metric that it did not judge.
            Regression: it did not measure a case that has a baseline.
        """
        self.raise_caught()
        found = [run.found for run in self.path.runs if run.found is not None and run.found.verdicts]
        launches = [launch for result in found for launch in result.launches]
        if self._session.settings.judges:
            self.path.do(check_measured, self.ask.bounds, launches, self._session.settings.max_message_bytes)
        for run in self._measured_runs:
            self.path.end(run, self._measured(run, in_update=False))
        test, case_id = test_and_id(self._node)
        used = [result.case for result in self.path.ended]
        lost = self.path.do(self._session.lost_cases, test, case_id, self.backend, used=used)
        if lost:
            store, here = self._session.store, self._node.config.invocation_params.dir
            paths = [os.path.relpath(store.path(name.test, name.key), here) for name in lost]
            command = rerun_command(self._node.config, self._node)
            raise Regression(lost_text(lost, paths, folder=os.path.relpath(store.folder, here), command=command))

    def _derived_samples(
        self, given: Arguments, metric: Sample, values: object, runs: Sequence[Run]
    ) -> DerivedNumbers | GivenNumbers:
        if not isinstance(runs, list | tuple) or not all(any(run is known for known in self.path.runs) for run in runs):
            given.refuse(f"of={show(runs)}; wanted a result of distbench.run or distbench.measure of this test")
        if callable(values):
            if not len(runs):
                given.refuse("a function needs of=, the runs of this test from which it computes its number")
            return DerivedNumbers(metric, values, [run.source for run in runs])
        if len(runs):
            given.refuse("of= is for functions, which are called once per launch; leave it out for numbers")
        numbers = given.numbers("values", values)
        if not numbers:
            given.refuse("no value to judge")
        why = next(filter(None, (why_impossible(number, metric.unit) for number in numbers)), "")
        if why and (metric.is_judged or metric.bounds):
            given.refuse(f"values={show(values)}: {why}")
        launched = (run.source.launches[0] for run in reversed(self.path.runs) if run.source.launches)
        measured = next((launch.software for launch in launched), {}) or self._session.hardware.software
        return GivenNumbers(metric, numbers, measured)

    @property
    def _measured_runs(self) -> list[Run]:
        return [run for run in self.path.runs if run.measure is not None]

    def _measured(self, run: Run, *, in_update: bool = True) -> CaseResult:
        wanted = {}
        for known in self._measured_runs:
            launches = known.request.launches if self._session.settings.judges else 1
            wanted[known] = self._alternating(launches, known.source) if in_update else launches
        if len(run.source.whole) < min(wanted[run], run.source.most):
            for number in range(1, wanted[run] + 1):
                self._add_launches([known for known, launches in wanted.items() if launches >= number], number)
        return self.path.explain(run, unjudged(self._session, run))

    def _add_launches(self, runs: Sequence[Run], wanted: int) -> None:
        ranks = max(run.request.case.world_size for run in runs)
        self.path.do(self._session.measure, [run.source for run in runs], wanted, ranks)


def _around(runs: Iterable[Run]) -> dict[str, str]:
    """The surroundings of the runs that a number is derived from; different values are joined by ``+``."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, value in run.request.case.conditions.around.items():
            found.setdefault(name, {})[value] = None
    return {name: "+".join(values) for name, values in found.items()}
