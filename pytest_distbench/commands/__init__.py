"""Commands of ``distbench``, and what they share: a row of their tables, a negative answer, a choice of baselines."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, NamedTuple

from pytest_distbench.errors import DistbenchError
from pytest_distbench.store.baselines import BaselineFile, Baselines
from pytest_distbench.store.entries import selection


class Subcommand(NamedTuple):
    """A command, or a group of commands.

    Attributes:
        add_options: adds the command's options to its parser; for a group it adds the commands.
        run: takes the parsed options, and yields the lines to print; None for a group.
    """

    help: str
    add_options: Callable[[argparse.ArgumentParser], object]
    run: Callable[[argparse.Namespace], Iterable[str]] | None = None


def add_commands(parser: argparse.ArgumentParser, rows: Mapping[str, Subcommand]) -> None:
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, row in rows.items():
        made = commands.add_parser(name, help=row.help)
        row.add_options(made)
        if row.run is not None:
            made.set_defaults(command=row.run)


class NegativeError(Exception):
    """Raised to end a command with exit code ``code`` for a negative answer, such as regressed; it has printed why."""

    def __init__(self, code: int = 1) -> None:
        super().__init__()
        self.code = code


def run_pytest(
    arguments: Sequence[str],
    *,
    program: Sequence[str] = ("-m", "pytest"),
    folder: str | None = None,
    stdout: IO[bytes] | None = None,
    variables: Mapping[str, str] = os.environ,
) -> int:
    """Run pytest, and return its exit code. By then its ranks have ended, also if a signal ends it.

    Raises:
        KeyboardInterrupt: Ctrl-C ended it. Tests that cannot be imported have the same exit code.
        NegativeError: SIGTERM ended it.
    """
    command = [sys.executable, "-P", *program, *arguments]
    process = subprocess.Popen(command, cwd=folder, stdout=stdout, env=variables)
    received = set()

    def take(number: int, frame: FrameType | None) -> None:
        del frame
        received.add(number)
        if number == signal.SIGTERM:  # Ctrl-C reaches pytest too
            process.terminate()

    before = {number: signal.signal(number, take) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if signal.SIGINT in received:
        raise KeyboardInterrupt
    if signal.SIGTERM in received:
        raise NegativeError(128 + signal.SIGTERM)
    return code


def take_pytest_options(parser: argparse.ArgumentParser, usage: str) -> None:
    """Make a parser leave unknown options to pytest: they are collected in ``pytest_arguments``."""
    parser.usage = f"%(prog)s {usage}"
    parser.allow_abbrev = False
    parser.set_defaults(pytest_arguments=[])


def choose_baselines(parser: argparse.ArgumentParser, *, default: Path | None = Path("baselines")) -> None:
    text = f"baseline directory (default: {default or 'that of the run'})"
    parser.add_argument("--baselines", metavar="DIR", type=Path, default=default, help=text)
    parser.add_argument("--platform", metavar="NAME", default="", help="only this platform")
    choose_names(parser, "only baselines with this in their name or node id; several select those that match any")


def choose_names(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("-k", dest="parts", metavar="PART", action="append", default=[], help=text)


def folder_of(options: argparse.Namespace) -> Path:
    folder: Path = options.baselines
    if not folder.is_dir():
        raise DistbenchError(f"{folder} is not a folder: run it where your baselines are, or give --baselines DIR")
    return folder


def read_chosen(options: argparse.Namespace) -> Iterator[BaselineFile]:
    folder = folder_of(options)
    choice = selection(options.parts)
    platforms = Baselines(folder, "").platforms()
    if options.platform and options.platform not in platforms:
        known = ", ".join(platforms) or "none"
        raise DistbenchError(f"no baselines of the platform {options.platform!r} in {folder}; there are {known}")
    for platform in [options.platform] if options.platform else platforms:
        yield from (file for file in Baselines(folder, platform).read_all() if choice(file.name))
