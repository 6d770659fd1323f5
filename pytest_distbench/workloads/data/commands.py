"""``distbench data``: lists, prepares and checks the data sets that trainings read. Preparing imports torch."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path

from pytest_distbench.commands import NegativeError, Subcommand, add_commands
from pytest_distbench.errors import DataError, look_up


def _add_sets(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", metavar="NAME", nargs="*", help="name of a set (default: all)")
    parser.add_argument(
        "--data", metavar="DIR", type=_folder, default=Path(), help="as for --distbench-data (default: here)"
    )


def _add_prepare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--generated", action="store_true", help="make a small synthetic set in the same format instead"
    )
    _add_sets(parser)


def _folder(text: str) -> Path:
    if "://" in text:
        raise argparse.ArgumentTypeError(f"wanted a folder on a disk or a mount, found the URL {text!r}")
    return Path(text)


@contextlib.contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(str(error)) from None


def _list(options: argparse.Namespace) -> Iterator[str]:
    from pytest_distbench.workloads.data.sets import SETS, folder_in

    for name in _chosen(options):
        row = SETS[name]
        with _disk_errors():
            place = folder_in(options.data, name)
        archives = f" ({' or '.join(row.archives)})" if row.archives else ""
        yield f"{name}: {row.title}"
        yield f"  {f'in {place}' if place else f'not in {options.data}'}; from {row.source}{archives}"


def _prepare(options: argparse.Namespace) -> Iterator[str]:
    from pytest_distbench.workloads.data.sets import SETS, find, folder_in, generate_into, unpack_into

    done = False
    for name in _chosen(options):
        row = SETS[name]
        made = ""
        with _disk_errors():
            folder = folder_in(options.data, name)
            if folder is None:
                folder = options.data / name
                archive = next((path for path in map(options.data.joinpath, row.archives) if path.is_file()), None)
                if options.generated:
                    generate_into(folder, row)
                    made = "generated"
                elif archive is not None:
                    unpack_into(folder, row, archive)
                    made = f"unpacked {archive}"
                elif options.names:
                    find(options.data, name)  # says what is not there
                else:
                    continue
            if row.make_cache is not None:
                row.make_cache(folder)
        done = True
        yield f"{name}: {made or 'ready'}, in {folder}"
    if not done:
        raise DataError(f"{options.data}: it contains no set and no archive of one; see distbench data list")


def _verify(options: argparse.Namespace) -> Iterator[str]:
    from pytest_distbench.workloads.data.sets import GENERATED, SETS, find, folder_in, verify

    with _disk_errors():
        chosen = [name for name in _chosen(options) if options.names or folder_in(options.data, name)]
    if not chosen:
        raise DataError(f"{options.data}: it contains no set; see distbench data list")
    failed = False
    for name in chosen:
        try:
            with _disk_errors():
                folder = find(options.data, name)
                counts = verify(folder, SETS[name])
        except DataError as error:
            failed = True
            yield f"{name}: {error}"
            continue
        kind = "generated" if (folder / GENERATED).exists() else "whole"
        yield f"{name}: {kind}, {', '.join(f'{number} {what}' for what, number in counts.items())}, in {folder}"
    if failed:
        raise NegativeError


def _chosen(options: argparse.Namespace) -> list[str]:
    from pytest_distbench.workloads.data.sets import SETS

    for name in options.names:
        look_up(SETS, name, "data set")
    return options.names or list(SETS)


_COMMANDS = {
    "list": Subcommand("list the sets: contents, source, and whether they are there", _add_sets, _list),
    "prepare": Subcommand(
        "unpack the archives of a folder, and make the caches that trainings read", _add_prepare, _prepare
    ),
    "verify": Subcommand("read a whole set, and name what is damaged with its file and place", _add_sets, _verify),
}
DATA = Subcommand("data sets of trainings: list, prepare, verify", lambda parser: add_commands(parser, _COMMANDS))
