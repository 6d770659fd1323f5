"""The command ``distbench``: baselines, run records, this machine. Imports neither torch nor pytest."""

from __future__ import annotations

import argparse
import importlib
import io
import itertools
import os
import sys
from collections.abc import Sequence

from pytest_distbench.commands import NegativeError, baseline, runs
from pytest_distbench.errors import ConfigurationError, DistbenchError, tell
from pytest_distbench.releases import __version__
from pytest_distbench.report.texts import escape
from pytest_distbench.tools import doctor, prepare

_COMMANDS = frozenset({"doctor", "verdict", "baseline", "compare", "report", "history", "init", "explain", "data"})
EXIT_ERROR = 2
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code.

    0: done; 1: the answer is no (unfit, regressed, refused), or what :class:`NegativeError` says in its place; 2: an
    error whose text is on stderr; 130: Ctrl-C. ``verdict`` has codes of its own for errors, as ``git bisect run`` takes
    2 for a bad commit.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    is_verdict = next((word for word in given if word in _COMMANDS), "") == "verdict"
    error_code = runs.SKIP if is_verdict else EXIT_ERROR
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # where it is ASCII, names of others are spelled out
    try:
        _import_modules(given)
    except DistbenchError as error:
        _complain(error)
        return error_code
    parser = _parser()
    try:
        options, rest = parser.parse_known_args(given)
    except SystemExit as end:
        if is_verdict and end.code:
            return runs.ABORT
        raise
    if rest and not hasattr(options, "pytest_arguments"):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.pytest_arguments = rest
    try:
        for line in options.command(options):
            print(escape(line), flush=True)
    except NegativeError as error:
        return error.code
    except DistbenchError as error:
        _complain(error)
        return error_code
    except KeyboardInterrupt:
        print("distbench: interrupted; what was reported as done is done, and no file is half written", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has had enough, as `| head` does
    return 0


def _complain(error: DistbenchError) -> None:
    """Say what is wrong on stderr; of several things each has a line, indented."""
    print("\n  ".join(map(escape, f"distbench: {error}".split("\n  "))), file=sys.stderr)


def _import_modules(arguments: Sequence[str]) -> None:
    """Import what ``-p MODULE`` before the command names, before the commands look at the tables it adds to."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("-p", dest="modules", action="append", default=[])
    known, _ = first.parse_known_args(list(itertools.takewhile(lambda a: a not in _COMMANDS, arguments)))
    for name in known.modules:
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 whatever a user's module does when it is imported
            raise ConfigurationError(f"-p {name}: cannot import it: {tell(error)}") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="distbench", description="Baselines and run records of pytest-distbench.")
    parser.add_argument("--version", action="version", version=f"pytest-distbench {__version__}")
    parser.add_argument(
        "-p",
        dest="modules",
        metavar="MODULE",
        action="append",
        default=[],
        help="import a module first, from this folder: it may add kinds of metrics, reasons of verdicts, or formats",
    )
    groups = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    prepare.add_init(groups.add_parser)
    doctor.add(groups.add_parser)
    store = groups.add_parser("baseline", help="list, compare and change stored baselines")
    commands = store.add_subparsers(title="commands", required=True, metavar="COMMAND")
    baseline.add_entries(commands.add_parser)
    baseline.add_review(commands.add_parser)
    baseline.add_transfer(commands.add_parser)
    sets = groups.add_parser("data", help="data sets of trainings: list, prepare, verify")
    prepare.add_data(sets.add_subparsers(title="commands", required=True, metavar="COMMAND").add_parser)
    runs.add_report(groups.add_parser)
    runs.add_verdict(groups.add_parser)
    runs.add_history(groups.add_parser)
    runs.add_explain(groups.add_parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
