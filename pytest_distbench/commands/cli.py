"""The command ``distbench``: baselines, run records, this machine. Imports neither torch nor pytest."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from pytest_distbench.commands import calibrate, entries, fitness, review, runs, transfer
from pytest_distbench.commands.contract import NegativeError
from pytest_distbench.errors import DistbenchError
from pytest_distbench.installation import __version__
from pytest_distbench.report.escape import escape

EXIT_NEGATIVE = 1
EXIT_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code.

    0: done; 1: the answer is no (unfit, regressed, refused); 2: an error whose text is on stderr.
    """
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and not hasattr(options, "pytest_arguments"):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.pytest_arguments = rest
    try:
        for line in options.command(options):
            print(escape(line), flush=True)
    except NegativeError:
        return EXIT_NEGATIVE
    except DistbenchError as error:
        print(escape(f"distbench: {error}"), file=sys.stderr)
        return EXIT_ERROR
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has had enough, as `| head` does
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="distbench", description="Baselines and run records of pytest-distbench.")
    parser.add_argument("--version", action="version", version=f"pytest-distbench {__version__}")
    groups = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    fitness.add(groups.add_parser)
    calibrate.add(groups.add_parser)
    baseline = groups.add_parser("baseline", help="look at and change stored baselines")
    commands = baseline.add_subparsers(title="commands", required=True, metavar="COMMAND")
    entries.add(commands.add_parser)
    review.add(commands.add_parser)
    transfer.add(commands.add_parser)
    runs.add(groups.add_parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
