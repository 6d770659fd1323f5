"""The command that runs a test again under the same options, and the one that records what it measured."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence

import pytest

from pytest_distbench.records.options import OPTIONS, Option

_WITH_VALUE = frozenset({
    "-c", "--config-file", "--rootdir", "--confcutdir", "-p", "-o", "--override-ini", "--import-mode",
})  # fmt: skip
"""Options of pytest that matter to a re-run and take the next argument as their value."""

_LEFT_OUT_WITH_VALUE = frozenset({
    "-k", "-m", "-n", "-W", "--deselect", "--ignore", "--ignore-glob", "--maxfail", "--tb", "--color", "--dist",
    "--maxprocesses", "--junitxml", "--junit-xml", "--durations", "--durations-min", "--report-log", "--basetemp",
    "--capture", "--log-file",
})  # fmt: skip
"""Options that choose tests, or say where to write and how to look: the re-run names one test, and is read by eye."""

_LEFT_OUT = re.compile(
    r"-[vqsxlr]\w*|-[kmnW].+|--(verbose|quiet|exitfirst|lf|last-failed|ff|failed-first|nf|new-first|sw|stepwise|stepwise-skip"
    r"|no-header|no-summary|showlocals|pdb|trace|full-trace|setup-show)"
)


def rerun_command(config: pytest.Config, nodeid: str) -> str:
    """The command, to be typed where this run was started: ``pytest 'suites/test_a.py::test_b[ws4]' --gpu``."""
    arguments = [str(argument) for argument in config.invocation_params.args]
    file, separator, function = nodeid.partition("::")
    path = os.path.relpath(config.rootpath / file, config.invocation_params.dir)
    kept = _keep(without_ours(arguments), chosen=set(config.args))
    return shlex.join(["pytest", f"{path}{separator}{function}", *kept])


def record_command(config: pytest.Config) -> str:
    """The command that records what this run found no baseline for."""
    arguments = [str(argument) for argument in config.invocation_params.args]
    return shlex.join(["pytest", *without_ours(arguments, "launches"), "--distbench-update=new"])


def without_ours(arguments: Sequence[str], *more: str) -> list[str]:
    """A command line without those of our options that are not to be repeated, and without ``more`` of them."""
    dropped = {
        f"--distbench-{name}": option for name, option in OPTIONS.items() if not option.is_repeated or name in more
    }
    kept: list[str] = []
    left_out: Option | None = None  # whose value comes next, unless it may stand alone
    for argument in arguments:
        if left_out is not None and not (left_out.const and argument.startswith("-")):
            left_out = None
            continue
        name, separator, _ = argument.partition("=")
        option = dropped.get(name)
        left_out = option if option is not None and option.metavar and not separator else None
        if option is None:
            kept.append(argument)
    return kept


def _keep(arguments: Sequence[str], *, chosen: set[str]) -> Iterator[str]:
    """The options that decide how a test runs, those of conftests and other plugins included.

    Args:
        arguments: as typed.
        chosen: those of them that name tests. What follows an unknown option and is not among them is its value.
    """
    rest = iter(arguments)
    for argument in rest:
        option, _, value = argument.partition("=")
        if option in _LEFT_OUT_WITH_VALUE:
            if not value:
                next(rest, None)
        elif option in _WITH_VALUE and not value:
            given = next(rest, "")
            if not (option == "-p" and given.startswith("no:")):  # such plugins change the screen, not the measurement
                yield from (argument, given)
        elif not _LEFT_OUT.fullmatch(option) and argument not in chosen:
            yield argument
