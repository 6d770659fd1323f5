"""``distbench baseline list / show / update / prune``: single entries of the store."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from pytest_distbench.commands.contract import Adder, choose_entries, folder_of, read_chosen
from pytest_distbench.errors import ConfigurationError, DistbenchError
from pytest_distbench.records.baseline import BaselineEntry
from pytest_distbench.records.case import EntryName
from pytest_distbench.records.choices import UPDATES
from pytest_distbench.records.quantiles import median
from pytest_distbench.report.texts.layout import layout
from pytest_distbench.report.texts.words import quantity
from pytest_distbench.store.baselines import BaselineFile, BaselineStore
from pytest_distbench.store.moved import has_test
from pytest_distbench.store.run_record import read_run_record


def add(add_parser: Adder) -> None:
    """Add these commands to the group ``baseline``."""
    listing = add_parser("list", help="one line per entry: platform, test, case, launches, metrics, bounds")
    choose_entries(listing)
    listing.set_defaults(command=_list)
    show = add_parser("show", help="every metric of the chosen entries")
    show.add_argument("shown", metavar="PART", nargs="*", default=[], help="as -k")
    choose_entries(show)
    show.set_defaults(command=_show)
    update = add_parser("update", help="run pytest --distbench-update on the arguments given")
    update.add_argument(
        "--only",
        choices=UPDATES,
        default="changed",
        help="entries to write (default: changed, which is new or moved)",
    )
    update.add_argument(
        "arguments", metavar="...", nargs=argparse.REMAINDER, help="of pytest: files or node ids first, then options"
    )
    update.set_defaults(command=_update)
    prune = add_parser("prune", help="delete entries: unused by a run, without a test, or by name")
    prune.add_argument("run", metavar="RUN.json", type=Path, nargs="?", help="those this whole, green run did not use")
    prune.add_argument("--gone", action="store_true", help="those whose test file or function does not exist any more")
    prune.add_argument("--root", metavar="DIR", type=Path, default=Path(), help="of --gone: pytest's root directory")
    prune.add_argument("--delete", action="store_true", help="do it; without this they are only named")
    choose_entries(prune)
    prune.set_defaults(command=_prune)


def _list(options: argparse.Namespace) -> list[str]:
    rows = [
        (
            file.platform,
            str(file.name),
            str(max((len(m.launches) for m in file.entry.metrics.values()), default=0)),
            str(len(file.entry.metrics)),
            str(len(file.entry.bounds) or ""),
        )
        for file in read_chosen(options)
    ]
    if not rows:
        return ["no baselines"]
    return layout(("platform", "test[case.backend.launcher]", "launches", "metrics", "bounds"), rows, left=2)


def _show(options: argparse.Namespace) -> Iterator[str]:
    options.parts = [*options.parts, *options.shown]
    shown = False
    for file in read_chosen(options):
        shown = True
        yield from _describe(file)
    if not shown:
        asked = " or ".join(map(repr, options.parts)) or "anything"
        raise DistbenchError(
            f"no baseline whose test or case matches {asked} in {options.baselines}; "
            "'distbench baseline list' lists them"
        )


def _describe(file: BaselineFile) -> Iterator[str]:
    entry = file.entry
    yield str(file.name)
    yield f"  {file.platform}, {entry.conditions.world_size} ranks, workload {entry.workload}"
    for field in BaselineEntry.__struct_fields__:
        value = getattr(entry, field)
        if field not in _SHOWN_APART and value not in (None, "", {}, []):
            yield f"  {field}: {msgspec.json.encode(value, order='sorted').decode()}"
    rows = []
    for metric, stored in entry.metrics.items():
        values = [v for v in stored.launches if v is not None]
        ends = median(values), min(values, default=None), max(values, default=None)
        numbers = [quantity(value, stored.unit) for value in ends]
        tolerance = "" if stored.tolerance is None else f"{stored.tolerance:.0%}"
        rows.append((f"  {metric}", *numbers, str(len(values)), tolerance))
    yield from layout(("  metric", "median", "min", "max", "launches", "tolerance"), rows)
    yield ""


_SHOWN_APART = frozenset({"metrics", "workload", "world_size", "backend", "launcher"})


def _update(options: argparse.Namespace) -> Iterator[str]:
    """Become pytest: its screen, its signals and its exit code are the user's."""
    command = [sys.executable, "-m", "pytest", f"--distbench-update={options.only}", *options.arguments]
    yield " ".join(["pytest", *command[3:]])
    os.execv(command[0], command)


def _prune(options: argparse.Namespace) -> Iterator[str]:
    if options.run is None and not options.gone and not options.parts:
        raise ConfigurationError(
            "prune: nothing says what to delete: give a RUN.json written by pytest --distbench-json of a whole, green "
            "run, or --gone, or -k PART"
        )
    unused = _unused_names(options.run) if options.run is not None else None
    names = [file.name for file in read_chosen(options) if unused is None or file.name in unused]
    if options.gone:
        there = {test: has_test(options.root, test) for test in {name.test for name in names}}
        if there and not any(there.values()):
            raise DistbenchError(
                f"none of these tests exists below {options.root.resolve()}: give pytest's root directory with --root, "
                "or choose by name with -k"
            )
        names = [name for name in names if not there[name.test]]
    folder = folder_of(options)
    for name in names:
        if options.delete:
            BaselineStore(folder, name.platform).delete(name.test, name.key)
        yield f"{'deleted' if options.delete else 'would delete'}  {name.platform}  {name}"
    counted = f"{len(names)} {'entry' if len(names) == 1 else 'entries'}"
    yield f"{counted} deleted" if options.delete else f"{counted} to delete{': --delete does it' if names else ''}"


def _unused_names(path: Path) -> set[EntryName]:
    unused = read_run_record(path).unused
    if unused is None:
        raise DistbenchError(
            f"{path}: this run was not whole or not green, so it cannot tell what is unused. "
            "Run whole files without -k, -m or node ids until all pass, or choose by name with -k"
        )
    return set(unused)
