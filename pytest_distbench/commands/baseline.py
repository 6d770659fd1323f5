"""``distbench baseline``: list, show, update, prune, move, diff and accept stored baselines."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from pytest_distbench import git
from pytest_distbench.commands import NegativeError, Subcommand, add_commands, choose_baselines, folder_of, read_chosen
from pytest_distbench.errors import ConfigurationError, DistbenchError
from pytest_distbench.extensions import Table
from pytest_distbench.judging.entry import FEWEST_LAUNCHES
from pytest_distbench.records.case import BaselineEntry, BaselineName
from pytest_distbench.records.kinds import METRIC_KINDS, grouped, median
from pytest_distbench.records.wanted import UPDATES
from pytest_distbench.report import escape_markdown, layout, row_line, table_head
from pytest_distbench.store.accept import (
    BaselineChange,
    FolderVersion,
    NotABaseline,
    RevisionVersion,
    baseline_change,
    changes_between,
    propose_baseline,
    why_test_did_not_pass,
    worse_by,
)
from pytest_distbench.store.baselines import Baselines
from pytest_distbench.store.entries import has_test, renamed_baselines, selection
from pytest_distbench.store.files import read_run_record
from pytest_distbench.units import counted, format_change, quantity


def _add_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shown", metavar="PART", nargs="*", default=[], help="as -k")
    choose_baselines(parser)


def _add_update(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only", choices=UPDATES, default="changed", help="which baselines (default: changed, with new)"
    )
    parser.add_argument(
        "arguments",
        metavar="...",
        nargs=argparse.REMAINDER,
        help="arguments of pytest: files or node ids first, then options",
    )


def _add_prune(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", metavar="RUN.json", type=Path, nargs="?", help="those that this complete, green run did not use"
    )
    parser.add_argument("--gone", action="store_true", help="those whose test file or function no longer exists")
    parser.add_argument("--root", metavar="DIR", type=Path, default=Path(), help="for --gone: pytest's root directory")
    parser.add_argument("--delete", action="store_true", help="delete them; without it they are only listed")
    choose_baselines(parser)


def _list(options: argparse.Namespace) -> list[str]:
    rows = [
        (
            file.platform,
            str(file.name),
            str(max(map(len, file.entry.metrics.values()), default=0)),
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
        entry = file.entry
        yield str(file.name)
        yield f"  {file.platform}, {entry.conditions.world_size} ranks, workload {entry.workload}"
        for field in BaselineEntry.__struct_fields__:
            value = getattr(entry, field)
            if field not in _SHOWN_APART and value not in (None, "", {}, []):
                yield f"  {field}: {msgspec.json.encode(value, order='sorted').decode()}"
        rows = []
        for metric, stored in entry.metrics.items():
            values = [m.value for m in stored if m.value is not None]
            ends = median(values), min(values, default=None), max(values, default=None)
            numbers = [quantity(value, stored[0].unit) for value in ends]
            tolerance = f"{entry.tolerances[metric]:.0%}" if metric in entry.tolerances else ""
            rows.append((f"  {metric}", *numbers, str(len(values)), tolerance))
        yield from layout(("  metric", "median", "min", "max", "launches", "tolerance"), rows)
        yield ""
    if not shown:
        asked = " or ".join(map(repr, options.parts)) or "anything"
        raise DistbenchError(
            f"no baseline whose test or case matches {asked} in {options.baselines}; "
            "'distbench baseline list' lists them"
        )


_SHOWN_APART = frozenset({"metrics", "tolerances", "workload", "world_size", "backend", "launcher"})


def _update(options: argparse.Namespace) -> Iterator[str]:
    command = [sys.executable, "-m", "pytest", f"--distbench-update={options.only}", *options.arguments]
    yield " ".join(["pytest", *command[3:]])
    os.execv(command[0], command)


def _prune(options: argparse.Namespace) -> Iterator[str]:
    if options.run is None and not options.gone and not options.parts:
        raise ConfigurationError(
            "prune: say what to delete: give the RUN.json of a complete, green run (pytest --distbench-json), or "
            "--gone, or -k PART"
        )
    unused = read_run_record(options.run).unused if options.run is not None else None
    if options.run is not None and unused is None:
        raise DistbenchError(
            f"{options.run}: this run was incomplete or not green, so it does not show what is unused. Run whole files "
            f"without -k, -m or node ids until all pass, or select by name with -k"
        )
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
            Baselines(folder, name.platform).delete(name.test, name.key)
        yield f"{'deleted' if options.delete else 'would delete'}  {name.platform}  {name}"
    number = counted(len(names), "baseline")
    yield f"{number} deleted" if options.delete else f"{number} to delete{': --delete does it' if names else ''}"


def _add_move(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("old", metavar="OLD", help="'path::test' or 'path::test[id]'")
    parser.add_argument("new", metavar="NEW", help="its new name")
    choose_baselines(parser)


def _move(options: argparse.Namespace) -> Iterator[str]:
    folder = folder_of(options)
    moves = list(renamed_baselines(read_chosen(options), options.old, options.new))
    stores = {platform: Baselines(folder, platform) for platform in {old.platform for old, _ in moves}}
    if not moves:
        raise DistbenchError(f"no baseline of {options.old} in {folder}; 'distbench baseline list' lists them")
    for _, new in moves:
        if os.path.lexists(path := stores[new.platform].path(new.test, new.key)):
            raise DistbenchError(f"{path}: {new.name} has a baseline already: prune the one of the two that is wrong")
    for old, new in moves:
        stores[new.platform].write(new.test, new.key, new.entry)
        stores[old.platform].delete(old.test, old.key)
        yield f"{old.platform}  {old.name} -> {new.name}"
    yield f"{counted(len(moves), 'baseline')} renamed; commit them with the test"


def _add_diff(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "against", metavar="REF|DIR", nargs="?", default="HEAD", help="a folder or a git revision (default: HEAD)"
    )
    parser.add_argument("--markdown", action="store_true", help="print a table for a pull request")
    choose_baselines(parser)


def _add_accept(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN.json", type=Path, help="written by pytest --distbench-json")
    parser.add_argument("--only", choices=UPDATES, default="changed", help="which cases (default: changed, with new)")
    parser.add_argument("--force", action="store_true", help=f"also metrics with fewer than {FEWEST_LAUNCHES} launches")
    parser.add_argument("--dry-run", action="store_true", help="show what would change and write nothing")
    choose_baselines(parser, default=None)


def _diff(options: argparse.Namespace) -> Iterator[str]:
    folder, choice = folder_of(options), selection(options.parts)
    other = Path(options.against)
    shown = change_markdown if options.markdown else change_lines
    with contextlib.ExitStack() as last:
        old: FolderVersion | RevisionVersion = FolderVersion(other)
        if not other.is_dir():
            old = last.enter_context(contextlib.closing(RevisionVersion(folder, options.against)))
        changes, unchanged = changes_between(old, FolderVersion(folder), choice, platform=options.platform)
    yield from shown(changes, unchanged=unchanged)


def _accept(options: argparse.Namespace) -> Iterator[str]:
    choice = selection(options.parts)
    changes: list[BaselineChange] = []
    refused: list[str] = []
    seen = kept = 0
    record = read_run_record(options.run)
    if record.results and all(result.reference.kind == "paired" for result in record.results):
        raise DistbenchError(
            f"{options.run} compares with {record.results[0].reference.name} by interleaved A/B: it has no numbers to "
            "accept. Measure without --distbench-against, by --distbench-update"
        )
    folder = options.baselines or Path(record.settings.get("baselines", "baselines"))
    here = git.describe_commit(folder.parent).removesuffix("-dirty")
    if record.commit.endswith("-dirty"):
        yield f"? {options.run} was measured on changes that no commit has, on top of {record.commit[:10]}"
    elif record.commit and here and record.commit != here:
        yield f"? {options.run} was measured at {record.commit[:10]}; checked out is {here[:10]}"
    did_not_pass = why_test_did_not_pass(record.results)
    for result in record.results:
        case = result.case
        name = BaselineName(platform=result.environment.platform, test=case.test, key=case.key)
        if not choice(name) or options.platform not in ("", name.platform):
            continue
        seen += 1
        store = Baselines(folder, name.platform)
        stored = store.read(name.test, name.key)
        try:
            entry = propose_baseline(
                result, stored, mode=options.only, force=options.force, did_not_pass=did_not_pass.get(result.nodeid, "")
            )
        except NotABaseline as error:
            refused.append(f"refused  {name}: {error}")
            continue
        change = baseline_change(name, stored, entry) if entry is not None else None
        if entry is None or change is None:
            kept += 1
            continue
        if not options.dry_run:
            store.write(name.test, name.key, entry, sync=False)
        changes.append(change)
    if not seen:
        raise DistbenchError(f"{options.run} has no case of that platform and name: 'distbench report' shows its cases")
    yield from change_lines(changes, unchanged=kept)
    if changes and not options.dry_run:
        yield f"review with: distbench baseline diff --baselines {folder}"
    if options.dry_run:
        yield "nothing was written: --dry-run"
    yield from refused
    if refused:
        raise NegativeError


MOST_ROWS = 100  # of metrics, and of other differences: GitHub cuts a comment at 64 KiB, and nobody reads more

_HEADER = ("test", "metric", "old", "new", "change", "launches")


def change_lines(changes: Sequence[BaselineChange], *, unchanged: int) -> list[str]:
    """Changes of baselines as lines for a terminal; ``unchanged``: number of baselines equal on both sides."""
    rows = _rows(changes)
    lines = layout(_HEADER, rows[:MOST_ROWS], left=2) if rows else []
    lines += _left_out(rows, "metrics, less worse than these")
    lines += [f"{what}: {note}" for what, note in [*_whole(changes), *_notes(changes)]]
    return [*lines, _counts(changes, unchanged)]


def change_markdown(changes: Sequence[BaselineChange], *, unchanged: int) -> list[str]:
    """Changes of baselines as Markdown for a pull request: the counts, a table of metrics, then what else differs."""
    rows = _rows(changes)
    lines = [f"### baselines: {_counts(changes, unchanged)}", ""]
    if rows:
        lines += [*table_head(_HEADER, left=2), *map(row_line, rows[:MOST_ROWS])]
        lines += ["", *_left_out(rows, "metrics, less worse than these")]
    return lines + [
        f"- {escape_markdown(what)}: {escape_markdown(note)}" for what, note in [*_whole(changes), *_notes(changes)]
    ]


def _rows(changes: Sequence[BaselineChange]) -> list[tuple[str, ...]]:
    found = [(change, metric) for change in changes if change.kind == "changed" for metric in change.metrics]
    rows = []
    for change, metric in sorted(found, key=lambda pair: -worse_by(pair[1])):
        is_exact = METRIC_KINDS[metric.better].is_exact
        ratio = "" if metric.ratio is None or is_exact else format_change(metric.ratio)
        numbers = (quantity(value, metric.unit) for value in (metric.baseline, metric.current))
        launches = f"{metric.baseline_launches} -> {metric.launches}"
        rows.append((str(change.name), metric.metric, *numbers, ratio or "exact" * is_exact, launches))
    return rows


def _whole(changes: Sequence[BaselineChange]) -> list[tuple[str, str]]:
    found = []
    for entry in changes:
        if entry.kind != "changed":
            launches = max((max(m.baseline_launches, m.launches) for m in entry.metrics), default=0)
            metrics = counted(len(entry.metrics), "metric")
            found.append((entry.kind, f"{entry.name} ({metrics}, {launches} launches)"))
    return [*found[:MOST_ROWS], *(("and", line) for line in _left_out(found, "entries"))]


def _notes(changes: Sequence[BaselineChange]) -> list[tuple[str, str]]:
    by_note = grouped((note, str(entry.name)) for entry in changes for note in entry.notes)
    found = [(names[0] if len(names) == 1 else f"{len(names)} cases", note) for note, names in by_note.items()]
    return [*found[:MOST_ROWS], *(("and", line) for line in _left_out(found, "differences"))]


def _left_out(found: Sequence[object], what: str) -> list[str]:
    return [f"{len(found) - MOST_ROWS} more {what}"] if len(found) > MOST_ROWS else []


def _counts(changes: Sequence[BaselineChange], unchanged: int) -> str:
    kinds = Counter(entry.kind for entry in changes)
    return f"{kinds['changed']} changed, {kinds['new']} new, {kinds['removed']} removed, {unchanged} unchanged"


BASELINE_COMMANDS: Table[str, Subcommand] = Table(
    "baseline commands",
    {
        "list": Subcommand(
            "list the baselines: platform, test, case, launches, metrics, bounds", choose_baselines, _list
        ),
        "show": Subcommand("show every metric of the selected baselines", _add_show, _show),
        "update": Subcommand(
            "measure again and record: pytest --distbench-update with the given arguments", _add_update, _update
        ),
        "prune": Subcommand("delete baselines: not used by a run, without a test, or by name", _add_prune, _prune),
        "move": Subcommand("rename a test, or one id of it, in the baselines", _add_move, _move),
        "diff": Subcommand(
            "show what changed since a git revision, or compared with another baseline directory", _add_diff, _diff
        ),
        "accept": Subcommand("record the numbers of a run record (a CI artifact) as baselines", _add_accept, _accept),
    },
)
"""Commands by name, after ``distbench baseline``."""

BASELINE = Subcommand(
    "list, compare and change stored baselines", lambda parser: add_commands(parser, BASELINE_COMMANDS)
)
