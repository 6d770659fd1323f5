"""What a call of a test ends with: a run, or an exception without a traceback, whose first line is the whole story."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pytest_distbench import git
from pytest_distbench.errors import DistbenchWarning
from pytest_distbench.plugin.names import rerun_command
from pytest_distbench.records.iteration import CaseTrace
from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.run import CaseResult, Finding
from pytest_distbench.report import escape, escape_lines
from pytest_distbench.report.verdicts import explanation
from pytest_distbench.run.loop import Session
from pytest_distbench.run.request import CaseRequest
from pytest_distbench.run.sources import Source


class Failure(pytest.fail.Exception):  # type: ignore[name-defined,misc] # an attribute pytest adds to the function
    """A test failure whose text is shown as it is, but for control characters: ranks and files supply some of it."""

    def __init__(self, message: str) -> None:
        super().__init__(escape_lines(message), pytrace=False)


class Regression(Failure):
    """A judged metric got worse than its baseline allows."""


class BeyondBound(Failure):
    """A metric is beyond a bound that was set for it."""


class Unaccepted(Failure):
    """Nothing regressed, but --distbench-strict or --distbench-fail-on-improvement does not accept a verdict."""


class NotStored(Failure):
    """What an update measured is not fit to be a baseline."""


class MissingBaseline(Failure):
    """There is no baseline, and the policy is to fail then."""


class NotFound(Failure):
    """A slowdown was planted, and this run would not have told of it."""


class LaunchFailed(Failure):
    """Ranks failed, hung or disagreed."""


class Misuse(Failure):
    """The test asks for something that cannot be done: a body that cannot be imported, parameters that are not JSON."""


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
"""By what decided."""

CAUGHT = (
    "the test caught this failure and went on, but it fails all the same; if the failure is expected, use "
    "@pytest.mark.distbench(xfail_perf='why')"
)


def end_test(item: pytest.Item, session: Session, result: CaseResult) -> None:
    """Raise what a case ends its test with; nothing where the test goes on."""
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


def tell(item: pytest.Item, line: str) -> None:
    """Warn of what a launch met with, such as a busy machine: no failure, unless a filter names our warnings."""
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
    """What one ``distbench.run``, ``measure`` or ``judge`` found.

    Of a run that was only measured the launches that were asked for are made when ``result`` is first called, in turns
    with those of the other measured runs of the test.
    """

    def __init__(
        self,
        request: CaseRequest,
        source: Source,
        *,
        made_of: Sequence[Run] = (),
        measure: Callable[[Run], CaseResult] | None = None,
    ) -> None:
        self.request = request
        self.source = source
        self.made_of = made_of
        self.measure = measure
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
