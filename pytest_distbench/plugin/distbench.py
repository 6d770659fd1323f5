"""The fixture ``distbench``: runs bodies in process groups and judges what they record."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, Unpack

import pytest

from pytest_distbench import git
from pytest_distbench.errors import (
    AroundUnavailable,
    BackendUnavailable,
    DerivationError,
    DistbenchError,
    DistbenchWarning,
    show,
)
from pytest_distbench.judging.bounds import check_measured, plausible
from pytest_distbench.judging.outcome import Conclusion, conclude, concluded
from pytest_distbench.judging.sensitivity import why_implausible
from pytest_distbench.plugin.arguments import (
    Arguments,
    Called,
    CheckKeywords,
    MeasureKeywords,
    RunKeywords,
    ShapeKeywords,
)
from pytest_distbench.plugin.names import test_and_id
from pytest_distbench.plugin.outcomes import (
    BeyondBound,
    Failure,
    LaunchFailed,
    MissingBaseline,
    Misuse,
    NotFound,
    NotStored,
    Regression,
    Run,
    Unaccepted,
)
from pytest_distbench.plugin.requests import RequestMaker
from pytest_distbench.plugin.workload import Workload
from pytest_distbench.records.case import OVERSUBSCRIBED, Case
from pytest_distbench.records.iteration import CaseTrace
from pytest_distbench.records.kinds import METRIC_KINDS
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.metric import BoundValue, Sample, Scalar
from pytest_distbench.records.options import FAKE
from pytest_distbench.records.plan import LaunchRequest, Ranks, Work
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseResult, Control
from pytest_distbench.records.wire import XFAILED
from pytest_distbench.report import escape
from pytest_distbench.report.failures import explanation, lost_text, remark_lines
from pytest_distbench.run.against import Variant
from pytest_distbench.run.confirm import Again, Allowance, Doubt
from pytest_distbench.run.control import DERIVED, make_trace, plant, wants_trace
from pytest_distbench.run.evaluation import Evaluation
from pytest_distbench.run.loop import Session
from pytest_distbench.run.references import Nothing
from pytest_distbench.run.request import CaseRequest
from pytest_distbench.run.samples import DerivedNumbers, GivenNumbers, SampleFailed, Samples
from pytest_distbench.store.baselines import NotRecorded
from pytest_distbench.units import why_impossible

Recorder = Callable[[CaseResult], None]
"""Where finished cases go, to be carried into the reports. A case that comes again takes the earlier's place."""

Body = Callable[..., object] | str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A function that takes the :class:`RankContext`, ``"file.py::function"``, a script, or a command as a list."""

_Found = TypeVar("_Found")

_CAUGHT = (
    "the test caught this failure and went on, but it fails all the same; if the failure is expected, use "
    "@pytest.mark.distbench(xfail_perf='why')"
)

_FAILURES = {
    "launch": LaunchFailed,
    "nothing_judged": Misuse,
    "bound": BeyondBound,
    "refused": NotStored,
    "failed": Regression,
    "unaccepted": Unaccepted,
    "new": MissingBaseline,
    "not_found": NotFound,
}


class Distbench:
    """The ``distbench`` fixture: runs bodies in process groups and judges what they record."""

    def __init__(
        self,
        session: Session,
        node: pytest.Item,
        world_size: int,
        backend: str,
        record: Recorder,
        command: str,
        lend_terminal: Callable[[], AbstractContextManager[None]],
        again: Again | None = None,
        why_not_again: str = "",
    ) -> None:
        self.world_size = world_size
        self.backend = backend
        self.device: Literal["cpu", "cuda"] = "cuda" if session.settings.gpu else "cpu"
        self.data: str = session.settings.added.get("data", "")
        self._session = session
        self._node = node
        self._record = record
        self._command = command
        self._lend_terminal = lend_terminal
        self._again = again
        self._why_not_again = why_not_again
        self.ask = RequestMaker(
            session.settings,
            node,
            world_size=world_size,
            backend=backend,
            around=lambda request: self._guard(lambda: session.launching.surroundings.conditions(request)),
        )
        self._runs: list[Run] = []
        self._checks = 0
        self._used: list[Case] = []
        self._told: Failure | None = None
        self._measured: dict[Samples, tuple[CaseRequest, int]] = {}
        self._samples_of: dict[str, Samples] = {}
        self._launched: dict[Samples, LaunchRequest] = {}
        self._traces: dict[Samples, CaseTrace] = {}
        self._results: dict[str, CaseResult] = {}
        self.doubts: dict[str, Doubt] = {}
        self.failed_in_doubt = False

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
        return self.run_request(*self.ask.run(given, wanted))

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
        found, wanted = Workload(work=work, identity=self.ask.identity(given, identity)), Called(**options)
        ranks = given.ranks(wanted.world_size, self.world_size)
        return self.run_request(*self.ask.launch(given, found, wanted, world_size=ranks))

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
        asked = [self.ask.run(given, one) for one in wanted]
        samples = [self._samples(launched, request) for launched, request in asked]
        if self._again is None:
            first = max(request.launches for _, request in asked)
            launches = first if self._session.settings.judges else 1
            in_turns = max(self._in_turns(launches, known) for known in samples)
            ranks = max(request.case.world_size for _, request in asked)

            def take_turns() -> None:
                with contextlib.suppress(SampleFailed):  # its own verdict tells of it
                    self._session.measure(samples[:1], 1, ranks)
                    if (launch := samples[0].launches[0]).outcome == "passed":
                        check_first(asked[0][1].case.label, launch)
                    self._session.measure(samples, in_turns, ranks)

            with self._lend_terminal():
                self._guard(take_turns)
        return [self.run_request(*one, known) for one, known in zip(asked, samples, strict=True)]

    def _in_turns(self, launches: int, samples: Samples) -> int:
        """How many launches of a case are made in turns with others: an update makes all that it stores so."""
        settings = self._session.settings
        update = (settings.update_launches or settings.max_launches) if settings.update else 0
        return max(launches, int(min(update, samples.most_stored)))

    def run_request(self, launched: LaunchRequest, request: CaseRequest, samples: Samples | None = None) -> Run:
        """As :meth:`run`, for what :attr:`ask` has made of its arguments; launches that there are count."""
        samples = self._samples(launched, request) if samples is None else samples
        result = self._with_control(launched, request, self._judge(request, samples, launched=launched))
        measured = {m.name for launch in result.launches for m in launch.measurements}
        for name, meant in request.terms.misspelt(measured | {v.name for v in result.verdicts}).items():
            self._node.warn(DistbenchWarning(f"no metric {name!r} was judged; did you mean {meant!r}?"))
        run = self._keep(samples, self._finish(result))
        self._ask_about_directions(run)
        return run

    def _samples(self, launched: LaunchRequest, request: CaseRequest) -> Samples:
        """The launches of a case; in a test that is run again those it had, or such as can settle a doubt."""
        key, again = request.case.key, self._again
        known = again.samples.get(key) if again is not None else None
        variant = again.beside.get(key) if again is not None else None
        if known is None:
            known = self._session.samples(launched)
        elif variant is not None:
            known = self._session.samples_beside(launched, variant, known)
        self._samples_of[key] = known
        self._launched[known] = launched
        return known

    def _with_control(self, launched: LaunchRequest, request: CaseRequest, result: CaseResult) -> CaseResult:
        if self._session.settings.control is None or result.launches[-1].outcome != "passed":
            return result
        with self._lend_terminal():
            found = self._guard(lambda: plant(self._session, launched, request, result))
        return replace(result, control=found)

    def _judge(
        self,
        request: CaseRequest,
        samples: Samples,
        *,
        launched: LaunchRequest | None = None,
        sources: Sequence[str] = (),
    ) -> CaseResult:
        """The verdicts on a case; in a test that is run again those it had, or those that settle a doubt."""
        key, again = request.case.key, self._again
        if again is not None and (doubt := again.doubts.get(key)) is not None:
            with self._lend_terminal():
                result = self._guard(lambda: self._session.confirm(request, samples, doubt, again, launched))
            result = self._with_trace(result, samples, sources)
        elif again is not None and key in again.results:
            result = again.results[key]
        else:
            result = self._compared(request, samples, sources)
            if key not in self.doubts or self._session.settings.trace == "all":
                result = self._with_trace(result, samples, sources)
        self._results[key] = result
        return result

    def _with_trace(self, result: CaseResult, samples: Samples, sources: Sequence[str] = ()) -> CaseResult:
        """The case with its trace, where that is asked for; a number's that is made of several runs is of each of them.

        What it tells of is final: a case whose doubts are still to be settled has none yet.
        """
        if wants_trace(self._session.settings, result):
            for known in [samples, *(self._samples_of[key] for key in sources)]:
                self._trace(known)
        return replace(result, trace=self._traces.get(samples))

    def _trace(self, samples: Samples) -> None:
        launched = self._launched.get(samples)
        if launched is None or samples in self._traces:
            return
        if not samples.references:
            variant = None
        elif self._again is not None:
            key = next(key for key, known in self._samples_of.items() if known is samples)
            variant = self._again.beside.get(key)
        else:
            variant = self._session.launching.compared_with
        with self._lend_terminal():
            self._traces[samples] = make_trace(self._session, launched, samples, variant)

    def _compared(self, request: CaseRequest, samples: Samples, sources: Sequence[str]) -> CaseResult:
        reference = self._guard(lambda: self._session.reference(request))
        with self._lend_terminal():
            result = self._guard(lambda: self._session.run(request, samples, reference))
        try:
            if (raised := self._session.doubt(samples, reference, result, sources)) is not None:
                if self._why_not_again:
                    return replace(result, unconfirmed=self._why_not_again)
                self.doubts[request.case.key] = dataclasses.replace(raised, evaluation=self._evaluation)
        except NotRecorded as error:
            return replace(result, unconfirmed=str(error))
        return result

    @property
    def _evaluation(self) -> Evaluation:
        """What pytest itself evaluates for this test: its bodies are for the ranks."""
        item, config = self._node, self._node.config
        works = [launched.work for launched in self._launched.values()]
        module = getattr(item, "module", None)
        return Evaluation(
            module=getattr(module, "__name__", ""),
            function=getattr(getattr(item, "cls", None), "__qualname__", getattr(item, "originalname", "")),
            bodies=frozenset(w.body.function.partition(".")[0] for w in works if isinstance(w, Ranks)),
            plugins=[getattr(plugin, "__name__", "") for plugin in config.pluginmanager.get_plugins()],
            ini=config.inipath,
        )

    def again(
        self,
        allowance: Allowance,
        budget: Allowance,
        cases: int,
        settled: Collection[str],
        why_not: str,
        others_s: float,
    ) -> Again:
        """How this test is run again to settle its doubts.

        Args:
            allowance: what may take so long, if that is more than is left of the budget.
            budget: of the run.
            cases: in doubt, in this run of pytest.
            settled: keys of the cases that are run in turns. Of the others those that look slower stay in doubt, and
                those that are too noisy to tell stay what they are.
            why_not: why the others are not.
            others_s: that the first looks at other tests in doubt take.
        """
        beside: dict[str, Variant] = {}
        doubts = {key: doubt for key, doubt in self.doubts.items() if key in settled or doubt.is_suspicious}
        for key, doubt in doubts.items():
            if key in settled:
                beside |= dict.fromkeys([key, *doubt.sources], doubt.variant)
        return Again(
            samples=self._samples_of,
            results=self._results,
            doubts=doubts,
            beside=beside,
            cases=cases,
            allowance=allowance,
            budget=budget,
            others_s=others_s,
            left={key: why_not for key in doubts if key not in settled},
        )

    def _ask_about_directions(self, run: Run) -> None:
        for name, (unit, better) in {m.name: (m.unit, m.better) for m in run.launches[0].measurements}.items():
            if why := why_implausible(name, unit, better):
                self._node.warn(
                    DistbenchWarning(
                        f"{name!r} is recorded with better={better!r}: {why}; is that intended? If so, ignore this "
                        f"warning with pytest's filterwarnings"
                    )
                )

    def measure(self, body: Body | None = None, **options: Unpack[MeasureKeywords]) -> Run:
        """As :meth:`run`, without judging: for numbers that :meth:`judge` derives from several runs.

        The first launch is made at once. Further ones are made when they are needed, and alternate with those of the
        other measured runs of the test.
        """
        given = self.arguments("distbench.measure")
        given.keywords(options, self.measure, MeasureKeywords)
        if options.get("name", "") == "":
            options["name"] = "measure"
        launched, request = self.ask.run(given, Called(body=body, **options))
        samples = self._samples(launched, request)
        self._measured[samples] = request, request.launches if self._session.settings.judges else 1
        with self._lend_terminal():
            self._add_launches([samples], 1)
        return self._keep(samples, lambda: self._finish(self._measured_result(samples)))

    def check(self, body: Body | None = None, **options: Unpack[CheckKeywords]) -> Run:
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
        given.keywords(options, self.check, CheckKeywords)
        wanted = Called(body=body, launches=1, name=f"check{self._checks}", **options)
        launched, request = self.ask.run(given, wanted)
        samples = self._session.launches_of(launched)
        reference = Nothing(request)
        with self._lend_terminal():
            result = self._guard(lambda: self._session.run(request, samples, reference))
        return self._keep(samples, self._finish(result))

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
        point = given.point({} if at is None else at)
        unit = given.text("unit", unit, may_be_empty=True)
        metric = Sample(
            name=name,
            unit=unit,
            better=given.derived_kind(better),
            value=None,
            at=point,
            bounds=given.bounds(at_least, at_most, unit=unit),
        )
        metric = replace(metric, bounds=[*metric.bounds, *([] if metric.bounds else plausible(metric))])
        if tolerance is not None and METRIC_KINDS[metric.better].rule == "exact":
            given.refuse(f"tolerance={show(tolerance)} has no effect with better={better!r}, which is compared exactly")
        samples = self._derived_samples(given, metric, values, of)
        around = self._around([of] if isinstance(of, Run) else of or self._runs)
        request = self.ask.derived(
            given,
            metric=metric.key,
            around=around,
            identity=self.ask.identity(given, params),
            launches=None if callable(values) else int(samples.most),
            tolerance=None if tolerance is None else given.fraction("tolerance", tolerance),
        )
        if OVERSUBSCRIBED in around and metric.is_noisy:
            with self._lend_terminal():
                shown = self._guard(lambda: self._session.run(request, samples, Nothing(request)))
            return self._keep(samples, self._finish(shown))
        made_of = [run.samples for run in ([of] if isinstance(of, Run) else of)]
        sources = [key for key, known in self._samples_of.items() if any(known is source for source in made_of)]
        result = self._judge(request, samples, sources=sources)
        if self._session.settings.control is not None and metric.is_noisy:
            result = replace(result, control=Control(why_not=DERIVED))
        if result.verdicts and not any(verdict.is_judged for verdict in result.verdicts):
            given.refuse(f"better={better!r} is judged only by a bound: give at_most= or at_least=, or another better=")
        run = self._keep(samples, self._finish(result))
        self._ask_about_directions(run)
        return run

    def arguments(self, call: str) -> Arguments:
        """What checks the arguments of a call in this test."""
        return Arguments(call, self._node.path)

    def skip_without_clocks(self, why: str) -> None:
        """Skip the test where clocks and values mean nothing: on the backend ``fake``."""
        if self.ask.only_structure:
            pytest.skip(f"not run: {why}, and the {FAKE} backend has neither timings nor values")

    def note_measured(self) -> None:
        """Record what was measured so far, whatever becomes of the test."""
        for samples, (request, _) in self._measured.items():
            if samples.launches and not samples.failed:
                result = self._session.result(request, samples, Nothing(request))
                self._record(replace(result, trace=self._traces.get(samples)))

    def tell_caught(self) -> None:
        """Raise the failure that this test was told, and has caught; nothing where there was none."""
        if self._told is not None:
            raise type(self._told)(f"{self._told.msg}\n\n{_CAUGHT}")

    def finish(self) -> None:
        """What is left to do, and to say, when the test has passed: launches of measured runs that nobody looked at.

        A failure that was told to the test and did not end it is raised again: the test has caught it. Refused is a
        bound of its marker for what it did not judge; a case of the baseline that it did not measure is a regression.
        """
        self.tell_caught()
        judged = [run for run in self._runs if run.samples not in self._measured and run.verdicts]
        launches = [launch for run in judged for launch in run.launches]
        if self._session.settings.judges:
            self._guard(lambda: check_measured(self.ask.bounds, launches, self._session.settings.max_message_bytes))
        for samples in self._measured:
            self._finish(self._measured_result(samples, in_update=False))
        self._expect_every_case()

    def _expect_every_case(self) -> None:
        """A case of the baseline that no call of this test has measured is lost."""
        test, case_id = test_and_id(self._node)
        lost = self._guard(lambda: self._session.lost_cases(test, case_id, self.backend, used=self._used))
        if lost:
            store, here = self._session.store, self._node.config.invocation_params.dir
            paths = [os.path.relpath(store.path(name.test, name.key), here) for name in lost]
            folder = os.path.relpath(store.folder, here)
            raise Regression(lost_text(lost, paths, folder=folder, command=self._command))

    def _derived_samples(
        self, given: Arguments, metric: Sample, values: object, of: Sequence[Run] | Run
    ) -> DerivedNumbers | GivenNumbers:
        runs = [of] if isinstance(of, Run) else of
        if not isinstance(runs, list | tuple) or not all(any(run is known for known in self._runs) for run in runs):
            given.refuse(f"of={show(runs)}; wanted a result of distbench.run or distbench.measure of this test")
        if callable(values):
            if not len(runs):
                given.refuse("a function needs of=, the runs of this test from which it computes its number")
            return DerivedNumbers(metric, values, [run.samples for run in runs])
        if len(runs):
            given.refuse("of= is for functions, which are called once per launch; leave it out for numbers")
        numbers = given.numbers("values", values)
        if not numbers:
            given.refuse("no value to judge")
        why = next(filter(None, (why_impossible(number, metric.unit) for number in numbers)), "")
        if why and (metric.is_judged or metric.bounds):
            given.refuse(f"values={show(values)}: {why}")
        measured = next((run.samples.launches[0].software for run in reversed(self._runs) if run.samples.launches), {})
        return GivenNumbers(metric, numbers, measured or self._session.hardware.software)

    def _around(self, runs: Iterable[Run]) -> dict[str, str]:
        """What happened around the launches that a number is made of: where they differ in it, all of it."""
        found: dict[str, dict[str, None]] = {}
        for run in runs:
            is_measured = run.samples in self._measured
            case = self._measured[run.samples][0].case if is_measured else run.result.case
            for name, value in case.conditions.around.items():
                found.setdefault(name, {})[value] = None
        return {name: "+".join(values) for name, values in found.items()}

    def _keep(self, samples: Samples, result: CaseResult | Callable[[], CaseResult]) -> Run:
        run = Run(samples, (lambda: result) if isinstance(result, CaseResult) else result)
        self._runs.append(run)
        return run

    def _measured_result(self, samples: Samples, *, in_update: bool = True) -> CaseResult:
        """The record of a measured run with all the launches that were asked for; the others' are made beside it."""
        wanted = {
            known: self._in_turns(launches, known) if in_update else launches
            for known, (_, launches) in self._measured.items()
        }
        if len(samples.whole) < min(wanted[samples], samples.most):
            with self._lend_terminal():
                for number in range(1, wanted[samples] + 1):
                    self._add_launches([s for s, launches in wanted.items() if launches >= number], number)
        request, _ = self._measured[samples]
        return self._with_trace(self._session.result(request, samples, Nothing(request)), samples)

    def _add_launches(self, samples: Sequence[Samples], wanted: int) -> None:
        ranks = max(self._measured[measured][0].case.world_size for measured in samples)
        self._guard(lambda: self._session.measure(samples, wanted, ranks))

    def _guard(self, work: Callable[[], _Found]) -> _Found:
        """Do what may need the machine or the store; what goes wrong with them is told as the test's failure."""
        try:
            return work()
        except SampleFailed as error:
            failed = error.samples
        except DerivationError as error:
            if self.ask.only_structure and isinstance(error.__cause__, KeyError):
                pytest.skip(f"not judged: the {FAKE} backend has neither timings nor values: {escape(str(error))}")
            raise Misuse(str(error)) from None
        except BackendUnavailable as error:
            if set(self._session.settings.backends) & set(error.available):
                pytest.skip(f"not available: {error}")
            pytest.exit(f"--distbench-backend: {error}", returncode=pytest.ExitCode.USAGE_ERROR)
        except AroundUnavailable as error:
            self._tell(f"not run: {error}")  # which pytest shows without -rs too
            pytest.skip(f"not run: {error}")
        except DistbenchError as error:
            raise Misuse(str(error)) from None
        return self._tell_failed(failed)

    def _tell_failed(self, samples: Samples) -> NoReturn:
        if samples in self._measured:
            request, _ = self._measured[samples]
            self._finish(self._session.result(request, samples, Nothing(request)))
        run = next(run for run in self._runs if run.samples is samples)
        self._finish(replace(run.result, launches=samples.launches, verdicts=[], update=""))
        raise AssertionError("a failed launch ends its test")

    def _finish(self, result: CaseResult) -> CaseResult:
        launch = result.launches[-1]
        xfailed = launch.outcome == "skipped" and all(f.error and f.error.kind == XFAILED for f in launch.fates)
        conclusion = conclude(result, self._session.settings.policy, stood_down="xfailed" if xfailed else "skipped")
        result = concluded(result, conclusion)
        self._record(result)
        self._used.append(result.case)
        failed_by_number = conclusion.outcome == "failed" and conclusion.reason in ("failed", "unaccepted")
        self.failed_in_doubt = failed_by_number and result.case.key in self.doubts
        self._end_test(result, conclusion)
        for line in remark_lines(result.launches):
            self._tell(line)
        return result

    def _tell(self, line: str) -> None:
        """Warn of what a launch met with, such as a busy machine: no failure, unless a filter names our warnings."""
        warning = DistbenchWarning(escape(line))
        try:
            self._node.warn(warning)
        except DistbenchWarning:
            errors = [kind for action, _, kind, *_ in warnings.filters if action == "error" and isinstance(kind, type)]
            if any(issubclass(kind, DistbenchWarning) for kind in errors):
                raise
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                self._node.warn(warning)

    def _end_test(self, result: CaseResult, conclusion: Conclusion) -> None:
        match conclusion.outcome:
            case "skipped":
                pytest.skip(escape(result.headline))
            case "xfailed":
                pytest.xfail(escape(result.headline))
            case "failed":
                platforms = self._session.store.platforms() if conclusion.reason == "new" else []
                recorded_at = git.last_commit(Path(result.reference.path)) if result.reference.path else ""
                text = explanation(
                    result, conclusion, command=self._command, platforms=platforms, recorded_at=recorded_at
                )
                failure = _FAILURES[conclusion.reason](text)
                if result.reference.kind != "nothing":  # a check that has to fail may be expected to
                    self._told = self._told or failure
                raise failure
