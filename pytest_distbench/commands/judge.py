"""``distbench judge``: pytest, started where the base of a change is checked out; nothing of the change runs first."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

from pytest_distbench.commands import NegativeError, Subcommand, run_pytest, take_pytest_options
from pytest_distbench.run.judge import PROGRAM, made_ready


def _judge(options: argparse.Namespace) -> Iterator[str]:
    yield from ()
    with made_ready(options.pytest_arguments) as (judged, arguments, variables):
        there = judged.in_base(judged.folder)
        code = run_pytest(arguments, program=PROGRAM, folder=there, variables={**os.environ, **variables, "PWD": there})
    if code:
        raise NegativeError(code if code > 0 else 128 - code)


JUDGE = Subcommand(
    "run pytest with these arguments, --distbench-against REF among them: tests of REF over the library code of a "
    "change, as --distbench-judge=base; exit code: pytest's",
    lambda parser: take_pytest_options(parser, "TESTS --distbench-against REF [PYTEST OPTION ...]"),
    _judge,
)
