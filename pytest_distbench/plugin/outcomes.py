"""How a finished case becomes a pytest outcome: exceptions without a traceback, whose first line is the whole story."""

from __future__ import annotations

import pytest

from pytest_distbench.report.texts.layout import escape_lines


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
