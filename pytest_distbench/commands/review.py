"""``distbench baseline diff / accept``: what changed in the store, and taking a CI run's numbers into it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from pytest_distbench.commands.contract import Adder, NegativeError, choose_entries, folder_of
from pytest_distbench.errors import DistbenchError
from pytest_distbench.judging.update_policy import FEWEST_LAUNCHES
from pytest_distbench.records.case import EntryName
from pytest_distbench.records.choices import UPDATES
from pytest_distbench.report.texts.change_table import change_lines, change_markdown
from pytest_distbench.store.accept import NotABaseline, propose_entry, why_test_did_not_pass
from pytest_distbench.store.baselines import BaselineStore
from pytest_distbench.store.changes import EntryChange, entry_change
from pytest_distbench.store.names import selection
from pytest_distbench.store.revisions import FolderVersion, RevisionVersion, VersionChanges
from pytest_distbench.store.run_record import read_run_record


def add(add_parser: Adder) -> None:
    """Add these commands to the group ``baseline``."""
    diff = add_parser("diff", help="what changed since a git revision, or against another store")
    diff.add_argument(
        "against", metavar="REF|DIR", nargs="?", default="HEAD", help="a folder, or else a git revision (default: HEAD)"
    )
    diff.add_argument("--markdown", action="store_true", help="a table for a pull request")
    choose_entries(diff)
    diff.set_defaults(command=_diff)
    accept = add_parser("accept", help="take the numbers of a run record (a CI artifact) into the store")
    accept.add_argument("run", metavar="RUN.json", type=Path, help="written by pytest --distbench-json")
    accept.add_argument(
        "--only", choices=UPDATES, default="changed", help="which cases (default: changed, which is new or moved)"
    )
    accept.add_argument("--force", action="store_true", help=f"metrics with fewer than {FEWEST_LAUNCHES} launches too")
    accept.add_argument("--dry-run", action="store_true", help="show what would change, write nothing")
    choose_entries(accept)
    accept.set_defaults(command=_accept)


def _diff(options: argparse.Namespace) -> Iterator[str]:
    folder, choice = folder_of(options), selection(options.parts)
    other = Path(options.against)
    shown = change_markdown if options.markdown else change_lines
    if other.is_dir():
        comparison = VersionChanges(FolderVersion(other), FolderVersion(folder), choice, platform=options.platform)
        yield from shown(list(comparison), unchanged=comparison.unchanged)
        return
    with closing(RevisionVersion(folder, options.against)) as version:
        comparison = VersionChanges(version, FolderVersion(folder), choice, platform=options.platform)
        yield from shown(list(comparison), unchanged=comparison.unchanged)


def _accept(options: argparse.Namespace) -> Iterator[str]:
    choice = selection(options.parts)
    changes: list[EntryChange] = []
    refused: list[str] = []
    seen = kept = 0
    results = read_run_record(options.run).results
    did_not_pass = why_test_did_not_pass(results)
    for result in results:
        case = result.case
        name = EntryName(platform=result.environment.platform, test=case.test, key=case.key)
        if not choice(name) or options.platform not in ("", name.platform):
            continue
        seen += 1
        store = BaselineStore(options.baselines, name.platform)
        stored = store.entry(name.test, name.key)
        try:
            entry = propose_entry(
                result, stored, mode=options.only, force=options.force, did_not_pass=did_not_pass.get(result.nodeid, "")
            )
        except NotABaseline as error:
            refused.append(f"refused  {name}: {error}")
            continue
        change = entry_change(name, stored, entry) if entry is not None else None
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
        yield f"review with: distbench baseline diff --baselines {options.baselines}"
    if options.dry_run:
        yield "nothing was written: --dry-run"
    yield from refused
    if refused:
        raise NegativeError
