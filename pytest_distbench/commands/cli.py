"""The command ``distbench``: baselines, run records, this machine. Imports neither torch nor pytest."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence

from pytest_distbench.commands import NegativeError, Subcommand, add_commands, baseline, judge, runs
from pytest_distbench.errors import ConfigurationError, DistbenchError, error_text
from pytest_distbench.extensions import Table
from pytest_distbench.releases import own_version
from pytest_distbench.report import escape

COMMANDS: Table[str, Subcommand] = Table(
    "commands",
    {
        "baseline": baseline.BASELINE,
        "compare": runs.COMPARE,
        "judge": judge.JUDGE,
        "report": runs.REPORT,
        "verdict": runs.VERDICT,
    },
)
"""Commands by name. A module that ``-p`` imports may add some."""

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code.

    0: done; 1: the answer is no (unfit, regressed, refused), or what :class:`NegativeError` says in its place; 2: an
    error whose text is on stderr; 130: Ctrl-C. ``verdict`` has other codes for errors, as ``git bisect run`` takes 2
    for bad.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("-p", dest="modules", action="append", default=[])
    first.add_argument("words", nargs=argparse.REMAINDER)
    begin, _ = first.parse_known_args(given)
    is_verdict = begin.words[:1] == ["verdict"]
    error_code = runs.SKIP if is_verdict else EXIT_ERROR
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # where it is ASCII, names of others are spelled out
    try:
        _import_modules(begin.modules)
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
    print("\n  ".join(map(escape, f"distbench: {error}".split("\n  "))), file=sys.stderr)


def _import_modules(names: Sequence[str]) -> None:
    for name in names:
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 whatever a user's module does when it is imported
            raise ConfigurationError(f"-p {name}: cannot import it: {error_text(error)}") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="distbench", description="Baselines and run records of pytest-distbench.")
    parser.add_argument("--version", action="version", version=f"pytest-distbench {own_version()}")
    parser.add_argument(
        "-p",
        dest="modules",
        metavar="MODULE",
        action="append",
        default=[],
        help="import a module first, from this folder: it may add kinds of metrics, reasons of verdicts, or formats",
    )
    add_commands(parser, COMMANDS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
