"""``distbench judge``: pytest, started where the base of a change is checked out; nothing of the change runs first."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

from pytest_distbench.commands import NegativeError, Subcommand, run_pytest
from pytest_distbench.run.judge import PROGRAM, made_ready


def _add_judge(parser: argparse.ArgumentParser) -> None:
    """What its parser does not know is for pytest."""
    parser.usage = "%(prog)s TESTS --distbench-against REF [PYTEST OPTION ...]"
    parser.allow_abbrev = False
    parser.set_defaults(pytest_arguments=[])


def _judge(options: argparse.Namespace) -> Iterator[str]:
    """Prints nothing of its own, and ends as pytest ends."""
    yield from ()
    with made_ready(options.pytest_arguments) as (judged, arguments, variables):
        there = judged.in_base(judged.folder)
        code = run_pytest(arguments, program=PROGRAM, folder=there, variables={**os.environ, **variables, "PWD": there})
    if code:
        raise NegativeError(code if code > 0 else 128 - code)


JUDGE = Subcommand(
    "run pytest with these arguments, --distbench-against REF among them: tests of REF over the library code of a "
    "change, as --distbench-judge=base; exit code: pytest's",
    _add_judge,
    _judge,
)
