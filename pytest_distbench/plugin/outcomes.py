"""What a call of a test ends with: a run, or an exception without a traceback, whose first line is the whole story."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_distbench.records.launch import LaunchRecord
from pytest_distbench.records.run import CaseResult, Finding
from pytest_distbench.report import escape_lines
from pytest_distbench.run.samples import Samples


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


class Run:
    """What one ``distbench.run``, ``measure`` or ``judge`` found.

    Of a run that was only measured the launches that were asked for are made when ``result`` is first called, in turns
    with those of the other measured runs of the test.
    """

    def __init__(self, samples: Samples, result: Callable[[], CaseResult]) -> None:
        self.samples = samples
        self._result = result

    @property
    def result(self) -> CaseResult:
        """Launches and verdicts as records."""
        return self._result()

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
