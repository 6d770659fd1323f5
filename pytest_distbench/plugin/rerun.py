"""The command that runs a test again under the same options, and the one that records what it measured."""

from __future__ import annotations

import os
import re
import shlex
from collections import deque
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
    "--reruns", "--reruns-delay", "--html", "--css", "--alluredir", "--json-report-file", "--json-report-indent",
    "--cov", "--cov-report", "--cov-config", "--cov-fail-under", "--benchmark-json", "--benchmark-save",
})  # fmt: skip
"""Options that choose tests, or say where to write and how to look: the re-run names one test, and is read by eye."""

_LEFT_OUT = re.compile(
    r"-[vqsxlr]\w*|-[kmnW].+|--(verbose|quiet|exitfirst|lf|last-failed|ff|failed-first|nf|new-first|sw|stepwise|stepwise-skip"
    r"|no-header|no-summary|showlocals|pdb|trace|full-trace|setup-show"
    r"|cov-append|cov-branch|no-cov|json-report|json-report-summary|self-contained-html|clean-alluredir|benchmark-autosave)"
)


def rerun_command(config: pytest.Config, item: pytest.Item) -> str:
    """The command, to be typed where this run was started: ``pytest 'suites/test_a.py::test_b[ws4]' --gpu``."""
    options, _ = _split(config)
    path = os.path.relpath(item.path, config.invocation_params.dir)
    _, separator, function = item.nodeid.partition("::")
    kept = _keep(without_ours(options), chosen=set(config.args))
    return shlex.join(["pytest", f"{path}{separator}{function}", *kept])


def record_command(config: pytest.Config) -> str:
    return shlex.join(["pytest", *record_arguments(config)])


def record_arguments(config: pytest.Config) -> list[str]:
    options, names = _split(config)
    return [*without_ours(options, "launches"), "--distbench-update=new", *names]


def same_command(config: pytest.Config) -> str:
    return shlex.join(["pytest", *map(str, config.invocation_params.args)])


def _split(config: pytest.Config) -> tuple[list[str], list[str]]:
    """The command line up to a ``--``, and that with what follows: names of tests, whatever they look like."""
    arguments = [str(argument) for argument in config.invocation_params.args]
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:end], arguments[end:]


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

    What follows an unknown option and is none of the arguments that choose tests is its value.
    """
    rest = deque(arguments)
    while rest:
        argument = rest.popleft()
        option, _, value = argument.partition("=")
        if option in _LEFT_OUT_WITH_VALUE:
            if not value and rest and not rest[0].startswith("-"):  # some may stand alone
                rest.popleft()
        elif option in _WITH_VALUE and not value:
            given = rest.popleft() if rest else ""
            if not (option == "-p" and given.startswith("no:")):  # such plugins change the screen, not the measurement
                yield from (argument, given)
        elif not _LEFT_OUT.fullmatch(option) and argument not in chosen:
            yield argument
