"""The command ``distbench``: the baseline store from the shell. Imports neither torch nor pytest."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_distbench import __version__
from pytest_distbench.baselines import BaselineFile, read_file
from pytest_distbench.errors import DistbenchError
from pytest_distbench.report.escape import printable
from pytest_distbench.report.tables import layout, quantity

EXIT_ERROR = 2
EXIT_UNFIT = 1


class UnfitError(Exception):
    """The doctor found that tests cannot run here; it has said why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0; 1: unfit (doctor); 2: an error whose text is on stderr."""
    options = _parser().parse_args(arguments)
    try:
        for line in options.command(options):
            print(printable(line), flush=True)
    except UnfitError:
        return EXIT_UNFIT
    except DistbenchError as error:
        print(printable(f"distbench: {error}"), file=sys.stderr)
        return EXIT_ERROR
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has had enough, as `| head` does
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="distbench", description="Baselines of pytest-distbench.")
    parser.add_argument("--version", action="version", version=f"pytest-distbench {__version__}")
    groups = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    doctor = groups.add_parser("doctor", help="is this machine fit to measure? each finding with what to do")
    doctor.set_defaults(command=_doctor)
    baseline = groups.add_parser("baseline", help="look at stored baselines")
    commands = baseline.add_subparsers(title="commands", required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="one line per entry: platform, test, case, launches, metrics")
    listing.set_defaults(command=_list)
    show = commands.add_parser("show", help="every metric of the entries whose test or case contains a text")
    show.add_argument("text", metavar="TEXT", help="part of 'path::test[case]'")
    show.set_defaults(command=_show)
    for command in (listing, show):
        command.add_argument(
            "--baselines", metavar="DIR", type=Path, default=Path("baselines"), help="the store (default: baselines)"
        )
        command.add_argument("--platform", metavar="NAME", default="", help="only this hardware class")
    return parser


def _doctor(options: argparse.Namespace) -> Iterator[str]:
    del options
    from pytest_distbench import doctor

    failed = False

    def watched() -> Iterator[doctor.Finding]:
        nonlocal failed
        for finding in doctor.examine():
            failed = failed or finding.level == "fail"
            yield finding

    yield from doctor.report(watched())
    if failed:
        raise UnfitError


def _files(options: argparse.Namespace) -> list[BaselineFile]:
    folder: Path = options.baselines
    if not folder.is_dir():
        raise DistbenchError(f"{folder} is not a folder: run where your baselines are, or give --baselines DIR")
    files = [read_file(path) for path in sorted(folder.rglob("*.json"))]
    return [file for file in files if not options.platform or file.platform == options.platform]


def _list(options: argparse.Namespace) -> list[str]:
    rows = [
        (
            file.platform,
            f"{file.test}[{key}]",
            str(max((len(m.launches) for m in entry.metrics.values()), default=0)),
            str(len(entry.metrics)),
        )
        for file in _files(options)
        for key, entry in sorted(file.entries.items())
    ]
    if not rows:
        return ["no baselines"]
    return layout(("platform", "test[case.backend.launcher]", "launches", "metrics"), rows, left=2)


def _show(options: argparse.Namespace) -> list[str]:
    lines: list[str] = []
    for file in _files(options):
        for key, entry in sorted(file.entries.items()):
            name = f"{file.test}[{key}]"
            if options.text not in name:
                continue
            software = ", ".join(f"{k} {v}" for k, v in sorted(entry.software.items()))
            lines += [name, f"  {file.platform}, {entry.world_size} ranks, workload {entry.workload}", f"  {software}"]
            rows = []
            for metric, stored in entry.metrics.items():
                values = [v for v in stored.launches if v is not None]
                middle = statistics.median(values) if values else None
                low, high = (min(values), max(values)) if values else (None, None)
                rows.append(
                    (
                        f"  {metric}",
                        quantity(middle, stored.unit),
                        quantity(low, stored.unit),
                        quantity(high, stored.unit),
                        str(len(values)),
                    )
                )
            lines += [*layout(("  metric", "median", "min", "max", "launches"), rows), ""]
    if not lines:
        raise DistbenchError(
            f"no baseline whose test or case contains {options.text!r} in {options.baselines}; "
            "'distbench baseline list' lists them"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
