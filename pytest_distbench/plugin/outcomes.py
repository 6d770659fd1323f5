"""The results of a call of a test: a run, or an exception without a traceback, whose first line says why."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from pytest_distbench import git
from pytest_distbench.errors import (
    AroundUnavailable,
    BackendUnavailable,
    DerivationError,
    DistbenchError,
    DistbenchWarning,
)
from pytest_distbench.judging.bounds import why_implausible
from pytest_distbench.plugin.names import rerun_command
from pytest_distbench.records.iteration import CaseTrace
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.options import FAKE
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import CaseOutcome, CaseResult, Finding
from pytest_distbench.records.wire import XFAILED
from pytest_distbench.report import escape, escape_lines
from pytest_distbench.report.verdicts import explanation, remark_lines
from pytest_distbench.run.comparisons import Nothing
from pytest_distbench.run.request import CaseRequest, Settings
from pytest_distbench.run.session import Session
from pytest_distbench.run.sources import Source


class Failure(pytest.fail.Exception):  # type: ignore[name-defined,misc] # an attribute pytest adds to the function
    """A test failure that pytest shows by its text alone; control characters, which ranks may print, are escaped."""

    def __init__(self, message: str) -> None:
        super().__init__(escape_lines(message), pytrace=False)


class Regression(Failure):
    """A judged metric got worse than its baseline allows."""


class BeyondBound(Failure):
    """A metric is beyond a bound that was set for it."""


class Unaccepted(Failure):
    """Nothing regressed, but --distbench-strict or --distbench-fail-on-improvement does not accept a verdict."""


class NotStored(Failure):
    """The numbers of an update cannot be a baseline."""


class MissingBaseline(Failure):
    """There is no baseline, and the policy is to fail without one."""


class NotFound(Failure):
    """An injected slowdown was not detected."""


class LaunchFailed(Failure):
    """Ranks failed, hung or disagreed."""


class Misuse(Failure):
    """The test asks for something impossible, such as a body that cannot be imported, or a negative number of ranks."""


for _kind in (Regression, BeyondBound, Unaccepted, NotStored, MissingBaseline, NotFound, LaunchFailed, Misuse):
    _kind.__module__ = "builtins"  # pytest prints "Regression: ...", not the module's path, in its summary

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
"""Decision about a case -> the failure that it raises."""

CAUGHT = (
    "the test caught this failure and went on, but it fails all the same; if the failure is expected, use "
    "@pytest.mark.distbench(xfail_perf='why')"
)


def end_test(item: pytest.Item, session: Session, result: CaseResult) -> None:
    """Raise the outcome of a case if it ends its test; else warn of the remarks on its launches."""
    match result.outcome:
        case "skipped":
            pytest.skip(escape(result.headline))
        case "xfailed":
            pytest.xfail(escape(result.headline))
        case "failed":
            text = explanation(
                result,
                command=rerun_command(item.config, item),
                platforms=session.store.platforms() if result.decision == "new" else [],
                recorded_at=git.last_commit(Path(result.reference.path)) if result.reference.path else "",
            )
            raise _FAILURES[result.decision](text)
    for line in remark_lines(result.launches):
        warn(item, line)


def how_it_stands_down(result: CaseResult) -> CaseOutcome:
    """The outcome of a case if its ranks skip: ``xfailed`` if all of them called ``pytest.xfail``, else ``skipped``."""
    launch = result.launches[-1]
    is_xfailed = launch.outcome == "skipped" and all(f.error and f.error.kind == XFAILED for f in launch.fates)
    return "xfailed" if is_xfailed else "skipped"


@contextlib.contextmanager
def end_by_errors(item: pytest.Item, settings: Settings) -> Iterator[None]:
    """Fail or skip a test by an error that is raised inside.

    Under --distbench-attach an attached rank has the terminal meanwhile.
    """
    capture = None if settings.attach is None else item.config.pluginmanager.getplugin("capturemanager")
    try:
        with contextlib.ExitStack() as last:
            if capture is not None:
                capture.suspend(in_=True)
                last.callback(capture.resume)
            yield
    except DerivationError as error:
        if settings.fake_rank is not None and isinstance(error.__cause__, KeyError):
            pytest.skip(f"not judged: the {FAKE} backend has neither timings nor values: {escape(str(error))}")
        raise Misuse(str(error)) from None
    except BackendUnavailable as error:
        if set(settings.backends) & set(error.available):
            pytest.skip(f"not available: {error}")
        pytest.exit(f"--distbench-backend: {error}", returncode=pytest.ExitCode.USAGE_ERROR)
    except AroundUnavailable as error:
        warn(item, f"not run: {error}")  # which pytest shows without -rs too
        pytest.skip(f"not run: {error}")
    except DistbenchError as error:
        raise Misuse(str(error)) from None


def warn_of_names(item: pytest.Item, request: CaseRequest, result: CaseResult) -> None:
    """Warn of a name in the marker that no metric has, if one has a similar name."""
    measured = {m.name for launch in result.launches for m in launch.measurements}
    for name, meant in request.terms.misspelt(measured | {v.name for v in result.verdicts}).items():
        item.warn(DistbenchWarning(f"no metric {name!r} was judged; did you mean {meant!r}?"))


def warn_of_directions(item: pytest.Item, result: CaseResult) -> None:
    """Warn of a metric whose ``better=`` does not fit its name and unit."""
    for name, (unit, better) in {m.name: (m.unit, m.better) for m in result.launches[0].measurements}.items():
        if why := why_implausible(name, unit, better):
            then = "is that intended? If so, ignore this warning with pytest's filterwarnings"
            item.warn(DistbenchWarning(f"{name!r} is recorded with better={better!r}: {why}; {then}"))


def warn(item: pytest.Item, line: str) -> None:
    """Warn of a remark on a launch, such as a busy machine; only a filter that names DistbenchWarning makes it fail."""
    warning = DistbenchWarning(escape(line))
    try:
        item.warn(warning)
    except DistbenchWarning:
        errors = [kind for action, _, kind, *_ in warnings.filters if action == "error" and isinstance(kind, type)]
        if any(issubclass(kind, DistbenchWarning) for kind in errors):
            raise
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            item.warn(warning)


class Run:
    """The result of a ``distbench.run``, ``measure`` or ``judge``.

    Launches of a run that was only measured are made at the first use of ``result``, alternating with those of the
    other measured runs of the test.
    """

    def __init__(self, request: CaseRequest, source: Source, *, made_of: Sequence[Run] = ()) -> None:
        self.request = request
        self.source = source
        self.made_of = made_of
        self.measure: Callable[[Run], CaseResult] | None = None
        self.trace: CaseTrace | None = None
        self.judged: CaseResult | None = None
        self.found: CaseResult | None = None

    @property
    def result(self) -> CaseResult:
        """Launches and verdicts as records."""
        if self.measure is not None:
            return self.measure(self)
        assert self.found is not None, "its test has failed"
        return self.found

    @property
    def launches(self) -> list[LaunchRecord]:
        """One record per process group."""
        return self.result.launches

    @property
    def verdicts(self) -> dict[str, Finding]:
        """Verdict per metric key; empty after ``measure``."""
        return {v.metric: v for v in self.result.verdicts}

    def values(self, metric: str) -> list[float | None]:
        """The metric's value in each launch.

        Raises:
            KeyError: no such metric; the message lists those there are.
        """
        launches = self.launches
        found = [m.value for launch in launches for m in launch.measurements if m.key == metric]
        if not found:
            known = sorted({m.key for launch in launches for m in launch.measurements})
            raise KeyError(f"{metric!r} was not measured; there are {', '.join(known)}")
        return found


def unjudged(session: Session, run: Run) -> CaseResult:
    """A case as it was measured, without verdicts."""
    return replace(session.result(run.request, run.source, Nothing(run.request)), trace=run.trace)


def as_failed(session: Session, run: Run) -> CaseResult:
    """A case whose last launch did not pass, although it may have been judged before."""
    found, launches = run.found, run.source.launches
    return unjudged(session, run) if found is None else replace(found, launches=launches, verdicts=[], update="")


def parts_of(run: Run) -> list[str]:
    """Keys of the launched cases that the number of a run is computed from."""
    return [part.request.case.key for part in run.made_of if part.request.launched is not None]
