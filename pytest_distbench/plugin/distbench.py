"""The fixture ``distbench``: runs bodies in process groups and judges what they record."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, Unpack

import pytest

from pytest_distbench.errors import (
    AroundUnavailable,
    BackendUnavailable,
    DerivationError,
    DistbenchError,
    DistbenchWarning,
    show,
)
from pytest_distbench.judging.bounds import check_measured, plausible, why_implausible
from pytest_distbench.judging.outcome import conclude
from pytest_distbench.plugin.arguments import Arguments, Called, RunKeywords, ShapeKeywords
from pytest_distbench.plugin.carry import CASES, RERUN, WHY_NO_RERUN
from pytest_distbench.plugin.names import rerun_command, test_and_id
from pytest_distbench.plugin.outcomes import CAUGHT, Failure, Misuse, Regression, Run, end_test, tell
from pytest_distbench.plugin.requests import RequestMaker
from pytest_distbench.records.case import OVERSUBSCRIBED, Case
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import BoundValue, Sample, Scalar
from pytest_distbench.records.options import FAKE
from pytest_distbench.records.plan import Ranks, Work
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult
from pytest_distbench.records.wire import XFAILED
from pytest_distbench.report import escape
from pytest_distbench.report.verdicts import lost_text, remark_lines
from pytest_distbench.run.confirm import Evaluation, Rerun, Suspect
from pytest_distbench.run.control import explain_places, plant, trace_case
from pytest_distbench.run.loop import Session
from pytest_distbench.run.references import Nothing, Stored
from pytest_distbench.run.request import CaseRequest, Settings
from pytest_distbench.run.sources import DerivedNumbers, GivenNumbers, Reference, Source, SourceFailed
from pytest_distbench.store.baselines import NotRecorded
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
        self._rerun: Rerun | None = node.stash.get(RERUN, None)
        self.ask = RequestMaker(
            session.settings,
            node,
            world_size=world_size,
            backend=backend,
            around=lambda request: self._guard(lambda: session.launching.surroundings.conditions(request)),
        )
        self.runs: list[Run] = []
        self._checks = 0
        self._used: list[Case] = []
        self._told: Failure | None = None
        self.suspects: dict[str, Suspect] = {}
        self.failed_as_suspect = False

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
        return self.run_wanted(given, Called(body=body, **options))

    def run_wanted(self, given: Arguments, wanted: Called) -> Run:
        """As :meth:`run`, for what another call of the test wants, whose name errors have."""
        return self.run_request(self.ask.run(given, wanted))

    def run_work(self, call: str, work: Work, *, identity: Mapping[str, Any], **options: Unpack[ShapeKeywords]) -> Run:
        """As :meth:`run`, for a kind of launch that was added to ``LAUNCH_KINDS``.

        Args:
            call: what errors name.
            work: what to launch.
            identity: the parameters that identify the case; JSON-able.
            options: as for :meth:`run`: world_size, launches, timeout, tolerance, name.
        """
        given = self.arguments(call)
        given.keywords(options, self.run_work, ShapeKeywords)
        wanted = Called(work=work, identity=self.ask.identity(given, identity), **options)
        ranks = given.ranks(wanted.world_size, self.world_size)
        return self.run_request(self.ask.launch(given, wanted, world_size=ranks))

    def run_in_turns(
        self,
        given: Arguments,
        wanted: Sequence[Called],
        *,
        check_first: Callable[[str, LaunchRecord], None] = lambda label, launch: None,
    ) -> list[Run]:
        """As :meth:`run_wanted` for several, whose launches alternate: one of each, then one of each again.

        ``check_first`` gets the first launch of all with the label of its case, if it passed: before others are made
        it may find that they would be for nothing.
        """
        runs = [self._begin(self.ask.run(given, one)) for one in wanted]
        sources = [run.source for run in runs]
        if self._rerun is None:
            first = max(run.request.launches for run in runs)
            launches = first if self._session.settings.judges else 1
            in_turns = max(self._in_turns(launches, known) for known in sources)
            ranks = max(run.request.case.world_size for run in runs)

            def take_turns() -> None:
                with contextlib.suppress(SourceFailed):  # its own verdict tells of it
                    self._session.measure(sources[:1], 1, ranks)
                    if (launch := sources[0].launches[0]).outcome == "passed":
                        check_first(runs[0].request.case.label, launch)
                    self._session.measure(sources, in_turns, ranks)

            self._guard(take_turns)
        return [self._judge(run) for run in runs]

    def _in_turns(self, launches: int, source: Source) -> int:
        """How many launches of a case are made in turns with others: an update makes all that it stores so."""
        settings = self._session.settings
        update = (settings.update_launches or settings.max_launches) if settings.update else 0
        return max(launches, int(min(update, source.most_stored)))

    def run_request(self, request: CaseRequest) -> Run:
        """As :meth:`run`, for what :attr:`ask` has made of its arguments."""
        return self._judge(self._begin(request))

    def measure(self, body: Body | None = None, **options: Unpack[RunKeywords]) -> Run:
        """As :meth:`run`, without judging: for numbers that :meth:`judge` derives from several runs.

        The first launch is made at once. Further ones are made when they are needed, and alternate with those of the
        other measured runs of the test.
        """
        given = self.arguments("distbench.measure")
        given.keywords(options, self.measure, RunKeywords, but=("tolerance",))
        wanted = Called(body=body, **options)
        request = self.ask.run(given, wanted if wanted.name else dataclasses.replace(wanted, name="measure"))
        run = self._begin(request, measure=lambda run: self._finish(self._measured(run)))
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
        self.skip_without_clocks("distbench.check needs values")
        given = self.arguments("distbench.check")
        given.keywords(options, self.check, RunKeywords, but=("launches", "name", "tolerance"))
        wanted = dataclasses.replace(Called(body=body, **options), launches=1, name=f"check{self._checks}")
        request = self.ask.run(given, wanted)
        assert request.launched is not None
        run = Run(request, self._session.launches_of(request.launched))
        return self._keep(run, self._compare(run, Nothing(request)))

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
            name: of the metric.
            values: a function from one mapping (metric -> value) per run in ``of`` to the number of a launch, or None;
                or the numbers themselves, one per repetition.
            of: runs of this test that the function gets.
            unit: as in ``rank.record``.
            better: as in ``rank.record``.
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
        around = _around(runs or self.runs)
        wanted = Called(
            name=metric.key,
            identity=self.ask.identity(given, params),
            launches=None if callable(values) else int(source.most),
            tolerance=None if tolerance is None else given.fraction("tolerance", tolerance),
        )
        request = self.ask.derived(given, wanted, around)
        run = Run(request, source, made_of=runs)
        if OVERSUBSCRIBED in around and metric.is_noisy:
            return self._keep(run, self._compare(run, Nothing(request)))
        if not metric.is_judged and not metric.bounds:
            given.refuse(f"better={better!r} is judged only by a bound: give at_most= or at_least=, or another better=")
        return self._judge(run)

    def arguments(self, call: str) -> Arguments:
        """What checks the arguments of a call in this test."""
        return Arguments(call, self._node.path)

    def skip_without_clocks(self, why: str) -> None:
        """Skip the test where clocks and values mean nothing: on the backend ``fake``."""
        if self.ask.only_structure:
            pytest.skip(f"not run: {why}, and the {FAKE} backend has neither timings nor values")

    def note_measured(self) -> None:
        """Record what was measured so far, whatever becomes of the test."""
        for run in self._measured_runs:
            if run.source.launches and not run.source.failed:
                self._record(self._unjudged(run))

    def tell_caught(self) -> None:
        """Raise the failure that this test was told, and has caught; nothing where there was none."""
        if self._told is not None:
            raise type(self._told)(f"{self._told.msg}\n\n{CAUGHT}")

    def finish(self) -> None:
        """What is left to do, and to say, when the test has passed: launches of measured runs that nobody looked at.

        A failure that was told to the test and did not end it is raised again: the test has caught it. Refused is a
        bound of its marker for what it did not judge; a case of the baseline that it did not measure is a regression.
        """
        self.tell_caught()
        found = [run.found for run in self.runs if run.found is not None and run.found.verdicts]
        launches = [launch for result in found for launch in result.launches]
        if self._session.settings.judges:
            self._guard(lambda: check_measured(self.ask.bounds, launches, self._session.settings.max_message_bytes))
        for run in self._measured_runs:
            self._finish(self._measured(run, in_update=False))
        test, case_id = test_and_id(self._node)
        lost = self._guard(lambda: self._session.lost_cases(test, case_id, self.backend, used=self._used))
        if lost:
            store, here = self._session.store, self._node.config.invocation_params.dir
            paths = [os.path.relpath(store.path(name.test, name.key), here) for name in lost]
            command = rerun_command(self._node.config, self._node)
            raise Regression(lost_text(lost, paths, folder=os.path.relpath(store.folder, here), command=command))

    def _begin(self, request: CaseRequest, measure: Callable[[Run], CaseResult] | None = None) -> Run:
        """A run of the test, whose launches are still to be made, or are those it had before it was run again."""
        run = Run(request, self._session.source_again(request, self._rerun), measure=measure)
        self.runs.append(run)
        return run

    def _judge(self, run: Run) -> Run:
        """The verdicts on a case; in a test that is run again those it had, or those that confirm it."""
        session, request, rerun = self._session, run.request, self._rerun
        key = request.case.key
        if rerun is not None and (suspect := rerun.suspects.get(key)) is not None:
            result = self._guard(lambda: session.confirm(request, run.source, suspect, rerun))
            result = self._with_trace(run, result)
        elif rerun is not None and key in rerun.results:
            result = rerun.results[key]
        else:
            result = self._compared(run)
            if key not in self.suspects or session.settings.trace in ("all", "all:ranks"):
                result = self._with_trace(run, result)
        run.judged = result
        result = replace(result, control=self._guard(lambda: plant(session, request, result)))
        measured = {m.name for launch in result.launches for m in launch.measurements}
        for name, meant in request.terms.misspelt(measured | {v.name for v in result.verdicts}).items():
            self._node.warn(DistbenchWarning(f"no metric {name!r} was judged; did you mean {meant!r}?"))
        self._keep(run, result)
        for name, (unit, better) in {m.name: (m.unit, m.better) for m in result.launches[0].measurements}.items():
            if why := why_implausible(name, unit, better):
                self._node.warn(
                    DistbenchWarning(
                        f"{name!r} is recorded with better={better!r}: {why}; is that intended? If so, ignore this "
                        f"warning with pytest's filterwarnings"
                    )
                )
        return run

    def _compared(self, run: Run) -> CaseResult:
        reference = self._guard(lambda: self._session.reference(run.request))
        result = self._compare(run, reference)
        sources = [source.request.case.key for source in run.made_of if source.request.launched is not None]
        try:
            suspect = reference.suspect(run.source, result, sources) if isinstance(reference, Stored) else None
        except NotRecorded as error:
            return replace(result, unconfirmed=str(error))
        if suspect is None:
            return result
        if why_not := self._node.stash.get(WHY_NO_RERUN, ""):
            return replace(result, unconfirmed=why_not)
        works = [known.request.launched.work for known in self.runs if known.request.launched is not None]
        self.suspects[run.request.case.key] = dataclasses.replace(suspect, evaluation=_evaluation(self._node, works))
        return result

    def _compare(self, run: Run, reference: Reference) -> CaseResult:
        return self._guard(lambda: self._session.run(run.request, run.source, reference))

    def _with_trace(self, run: Run, result: CaseResult) -> CaseResult:
        """The case with its trace, where that is asked for; a number's that is made of several runs is of each of them.

        A case that is still to be confirmed has none yet.
        """
        with _terminal(self._node.config, self._session.settings):
            places = explain_places(self._session, run.request, run.source, result, self._rerun)
            result = replace(result, places=places)
            for known in (run, *run.made_of):
                if known.trace is None:
                    known.trace = trace_case(self._session, known.request, known.source, result, self._rerun)
        return replace(result, trace=run.trace)

    def _derived_samples(
        self, given: Arguments, metric: Sample, values: object, runs: Sequence[Run]
    ) -> DerivedNumbers | GivenNumbers:
        if not isinstance(runs, list | tuple) or not all(any(run is known for known in self.runs) for run in runs):
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
        measured = next((run.source.launches[0].software for run in reversed(self.runs) if run.source.launches), {})
        return GivenNumbers(metric, numbers, measured or self._session.hardware.software)

    @property
    def _measured_runs(self) -> list[Run]:
        return [run for run in self.runs if run.measure is not None]

    def _measured(self, run: Run, *, in_update: bool = True) -> CaseResult:
        """The record of a measured run with all the launches that were asked for; the others' are made beside it."""
        wanted = {}
        for known in self._measured_runs:
            launches = known.request.launches if self._session.settings.judges else 1
            wanted[known] = self._in_turns(launches, known.source) if in_update else launches
        if len(run.source.whole) < min(wanted[run], run.source.most):
            for number in range(1, wanted[run] + 1):
                self._add_launches([known for known, launches in wanted.items() if launches >= number], number)
        return self._with_trace(run, self._unjudged(run))

    def _add_launches(self, runs: Sequence[Run], wanted: int) -> None:
        ranks = max(run.request.case.world_size for run in runs)
        self._guard(lambda: self._session.measure([run.source for run in runs], wanted, ranks))

    def _unjudged(self, run: Run) -> CaseResult:
        return replace(self._session.result(run.request, run.source, Nothing(run.request)), trace=run.trace)

    def _guard(self, work: Callable[[], _Found]) -> _Found:
        """Do what may need the machine or the store; what goes wrong with them is told as the test's failure.

        Under --distbench-attach an attached rank has the terminal meanwhile.
        """
        try:
            with _terminal(self._node.config, self._session.settings):
                return work()
        except SourceFailed as error:
            failed = error.source
        except DerivationError as error:
            if self.ask.only_structure and isinstance(error.__cause__, KeyError):
                pytest.skip(f"not judged: the {FAKE} backend has neither timings nor values: {escape(str(error))}")
            raise Misuse(str(error)) from None
        except BackendUnavailable as error:
            if set(self._session.settings.backends) & set(error.available):
                pytest.skip(f"not available: {error}")
            pytest.exit(f"--distbench-backend: {error}", returncode=pytest.ExitCode.USAGE_ERROR)
        except AroundUnavailable as error:
            tell(self._node, f"not run: {error}")  # which pytest shows without -rs too
            pytest.skip(f"not run: {error}")
        except DistbenchError as error:
            raise Misuse(str(error)) from None
        run = next(run for run in self.runs if run.source is failed)
        told = run.found and replace(run.found, launches=failed.launches, verdicts=[], update="")
        self._finish(told or self._unjudged(run))
        raise AssertionError("a failed launch ends its test")

    def _keep(self, run: Run, result: CaseResult) -> Run:
        run.found = self._finish(result)
        if run not in self.runs:
            self.runs.append(run)
        return run

    def _record(self, result: CaseResult) -> None:
        """Have the reports carry a case. One that comes again takes the earlier's place."""
        self._node.stash.setdefault(CASES, {})[result.case.key] = result

    def _finish(self, result: CaseResult) -> CaseResult:
        launch = result.launches[-1]
        xfailed = launch.outcome == "skipped" and all(f.error and f.error.kind == XFAILED for f in launch.fates)
        result = conclude(result, self._session.settings.policy, stood_down="xfailed" if xfailed else "skipped")
        self._record(result)
        self._used.append(result.case)
        failed_by_number = result.outcome == "failed" and result.decision in ("failed", "unaccepted")
        self.failed_as_suspect = failed_by_number and result.case.key in self.suspects
        try:
            end_test(self._node, self._session, result)
        except Failure as failure:
            if result.reference.kind != "nothing":  # a check that has to fail may be expected to
                self._told = self._told or failure
            raise
        for line in remark_lines(result.launches):
            tell(self._node, line)
        return result


def _around(runs: Iterable[Run]) -> dict[str, str]:
    """What happened around the launches that a number is made of: where they differ in it, all of it."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, value in run.request.case.conditions.around.items():
            found.setdefault(name, {})[value] = None
    return {name: "+".join(values) for name, values in found.items()}


def _evaluation(item: pytest.Item, works: Sequence[Work]) -> Evaluation:
    """What pytest itself evaluates for a test: its bodies are for the ranks."""
    return Evaluation(
        module=getattr(getattr(item, "module", None), "__name__", ""),
        function=getattr(getattr(item, "cls", None), "__qualname__", getattr(item, "originalname", "")),
        bodies=frozenset(w.body.function.partition(".")[0] for w in works if isinstance(w, Ranks)),
        plugins=[getattr(plugin, "__name__", "") for plugin in item.config.pluginmanager.get_plugins()],
        ini=item.config.inipath,
    )


@contextlib.contextmanager
def _terminal(config: pytest.Config, settings: Settings) -> Iterator[None]:
    """Under --distbench-attach pytest lets go of stdin, stdout and stderr: the attached rank is given them."""
    capture = None if settings.attach is None else config.pluginmanager.getplugin("capturemanager")
    if capture is None:
        yield
        return
    capture.suspend(in_=True)
    try:
        yield
    finally:
        capture.resume()
