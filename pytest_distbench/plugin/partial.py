"""Whether a run saw every test it could have seen, and so can tell which stored entries nobody uses any more."""

from __future__ import annotations

import pytest

_SELECTING = (
    ("keyword", "-k"), ("markexpr", "-m"), ("deselect", "--deselect"), ("ignore", "--ignore"),
    ("ignore_glob", "--ignore-glob"), ("lf", "--last-failed"), ("stepwise", "--stepwise"), ("pyargs", "--pyargs"),
    ("distbench_attach", "--distbench-attach"),
)  # fmt: skip


def why_selected(config: pytest.Config, *, deselected: int) -> str:
    """Why tests that there are were not to run. Empty where none were left out."""
    for name, option in _SELECTING:
        if config.getoption(name, None):
            return f"{option} was given"
    if any("::" in str(argument) for argument in config.args):
        return "single tests were named"
    return f"{deselected} tests were deselected" if deselected else ""


def why_partial(config: pytest.Config, session: pytest.Session, *, deselected: int, unreported: int) -> str:
    """Why this run cannot tell what is unused: a selection, a failure, an early end. Empty if it can."""
    if why := why_selected(config, deselected=deselected):
        return why
    if session.exitstatus != pytest.ExitCode.OK or session.testsfailed:
        return f"{session.testsfailed} tests failed" if session.testsfailed else "the run did not end well"
    if session.shouldstop or session.shouldfail:
        return "the run was stopped early"
    if unreported:  # a conftest may run tests its own way
        return f"{unreported} collected tests were not reported"
    return ""
