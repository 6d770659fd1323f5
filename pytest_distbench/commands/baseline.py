"""``distbench baseline``: list, show, update, prune, diff, accept, export and import stored entries."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from pytest_distbench.commands import Adder, NegativeError, choose_entries, folder_of, read_chosen
from pytest_distbench.errors import ConfigurationError, DistbenchError, StoredFileError
from pytest_distbench.judging.entry import FEWEST_LAUNCHES
from pytest_distbench.records.case import BaselineEntry, Conditions, EntryName, key_text
from pytest_distbench.records.record import replace
from pytest_distbench.records.summaries import median
from pytest_distbench.records.wanted import UPDATES
from pytest_distbench.report.texts import escape_cell, layout, quantity
from pytest_distbench.report.texts.verdicts import change_lines, change_markdown
from pytest_distbench.store.accept import (
    EntryChange,
    FolderVersion,
    NotABaseline,
    RevisionVersion,
    changes_between,
    entry_change,
    propose_entry,
    why_test_did_not_pass,
)
from pytest_distbench.store.baselines import BaselineFile, BaselineStore
from pytest_distbench.store.entries import has_test, selection
from pytest_distbench.store.files import replace_file
from pytest_distbench.store.rows import entries_of, entry_rows, write_csv, write_json, write_parquet
from pytest_distbench.store.run_record import read_run_record
from pytest_distbench.tools.perf_output import PerfOutput, Rows, baselines_of, bounds_of, read_perf_output
from pytest_distbench.units import as_share, parse_bytes


def add_entries(add_parser: Adder) -> None:
    listing = add_parser("list", help="list the baselines: platform, test, case, launches, metrics, bounds")
    choose_entries(listing)
    listing.set_defaults(command=_list)
    show = add_parser("show", help="show every metric of the selected baselines")
    show.add_argument("shown", metavar="PART", nargs="*", default=[], help="as -k")
    choose_entries(show)
    show.set_defaults(command=_show)
    update = add_parser("update", help="measure again and record: pytest --distbench-update with the given arguments")
    update.add_argument(
        "--only",
        choices=UPDATES,
        default="changed",
        help="which baselines (default: changed, with new)",
    )
    update.add_argument(
        "arguments",
        metavar="...",
        nargs=argparse.REMAINDER,
        help="arguments of pytest: files or node ids first, then options",
    )
    update.set_defaults(command=_update)
    prune = add_parser("prune", help="delete baselines: not used by a run, without a test, or by name")
    prune.add_argument(
        "run", metavar="RUN.json", type=Path, nargs="?", help="those that this complete, green run did not use"
    )
    prune.add_argument("--gone", action="store_true", help="those whose test file or function no longer exists")
    prune.add_argument("--root", metavar="DIR", type=Path, default=Path(), help="for --gone: pytest's root directory")
    prune.add_argument("--delete", action="store_true", help="delete them; without it they are only listed")
    choose_entries(prune)
    prune.set_defaults(command=_prune)


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
        values = [m.value for m in stored if m.value is not None]
        ends = median(values), min(values, default=None), max(values, default=None)
        numbers = [quantity(value, stored[0].unit) for value in ends]
        tolerance = f"{entry.tolerances[metric]:.0%}" if metric in entry.tolerances else ""
        rows.append((f"  {metric}", *numbers, str(len(values)), tolerance))
    yield from layout(("  metric", "median", "min", "max", "launches", "tolerance"), rows)
    yield ""


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
    counted = f"{len(names)} baseline{'s' * (len(names) != 1)}"
    yield f"{counted} deleted" if options.delete else f"{counted} to delete{': --delete does it' if names else ''}"


def _unused_names(path: Path) -> set[EntryName]:
    unused = read_run_record(path).unused
    if unused is None:
        raise DistbenchError(
            f"{path}: this run was incomplete or not green, so it does not show what is unused. Run whole files "
            f"without -k, -m or node ids until all pass, or select by name with -k"
        )
    return set(unused)


def add_review(add_parser: Adder) -> None:
    diff = add_parser(
        "diff", help="show what changed since a git revision, or compared with another baseline directory"
    )
    diff.add_argument(
        "against", metavar="REF|DIR", nargs="?", default="HEAD", help="a folder or a git revision (default: HEAD)"
    )
    diff.add_argument("--markdown", action="store_true", help="print a table for a pull request")
    choose_entries(diff)
    diff.set_defaults(command=_diff)
    accept = add_parser("accept", help="record the numbers of a run record (a CI artifact) as baselines")
    accept.add_argument("run", metavar="RUN.json", type=Path, help="written by pytest --distbench-json")
    accept.add_argument("--only", choices=UPDATES, default="changed", help="which cases (default: changed, with new)")
    accept.add_argument("--force", action="store_true", help=f"also metrics with fewer than {FEWEST_LAUNCHES} launches")
    accept.add_argument("--dry-run", action="store_true", help="show what would change and write nothing")
    choose_entries(accept, default=None)
    accept.set_defaults(command=_accept)


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
    changes: list[EntryChange] = []
    refused: list[str] = []
    seen = kept = 0
    record = read_run_record(options.run)
    folder = options.baselines or Path(record.settings.get("baselines", "baselines"))
    did_not_pass = why_test_did_not_pass(record.results)
    for result in record.results:
        case = result.case
        name = EntryName(platform=result.environment.platform, test=case.test, key=case.key)
        if not choice(name) or options.platform not in ("", name.platform):
            continue
        seen += 1
        store = BaselineStore(folder, name.platform)
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
        yield f"review with: distbench baseline diff --baselines {folder}"
    if options.dry_run:
        yield "nothing was written: --dry-run"
    yield from refused
    if refused:
        raise NegativeError


_FORMATS: Mapping[str, Callable[[Iterable[BaselineFile], BinaryIO], None]] = {
    "json": write_json,
    "csv": lambda files, out: write_csv(entry_rows(files), out, show=escape_cell),
    "parquet": lambda files, out: write_parquet(entry_rows(files), out),
}
"""Writers of the formats; only JSON can be imported again."""


def add_transfer(add_parser: Adder) -> None:
    export = add_parser("export", help="write all values of all launches into one file")
    export.add_argument(
        "--format",
        choices=_FORMATS,
        default="json",
        help="json (default): a baseline per line, for import; csv, parquet: a value per row",
    )
    export.add_argument("-o", "--output", metavar="FILE", type=Path, help="default: standard output")
    choose_entries(export)
    export.set_defaults(command=_export)
    importing = add_parser(
        "import",
        help="add baselines of a file or another directory, or numbers of nccl-tests and rccl-tests",
    )
    importing.add_argument(
        "source",
        metavar="FILE|DIR",
        type=Path,
        nargs="+",
        help="a file of export --format json, a baseline directory, or a run",
    )
    importing.add_argument(
        "--existing", choices=("keep", "replace"), default="keep", help="baselines that exist already (default: keep)"
    )
    choose_entries(importing)
    _add_options_of_numbers(importing)
    importing.set_defaults(command=_import)


def _export(options: argparse.Namespace) -> Iterator[str]:
    number = 0

    def count_entries() -> Iterator[BaselineFile]:
        nonlocal number
        for file in read_chosen(options):
            number += 1
            yield file

    write = _FORMATS[options.format]
    if options.output is None:
        if options.format == "parquet":
            raise ConfigurationError("export --format parquet is no text: give -o FILE")
        write(count_entries(), sys.stdout.buffer)
        return
    with replace_file(options.output, next_step="Give -o a writable place") as out:
        write(count_entries(), out)
    yield f"{number} baseline{'s' * (number != 1)} written to {options.output}"


def _refuse_contradictions(found: Iterable[tuple[str, BaselineFile]]) -> None:
    """Of two entries of one name that differ nobody knows which is meant."""
    seen: dict[EntryName, tuple[str, bytes]] = {}
    for place, file in found:
        digest = hashlib.blake2b(msgspec.json.encode(file.entry, order="sorted")).digest()
        first, known = seen.setdefault(file.name, (place, digest))
        if known != digest:
            raise DistbenchError(
                f"{first} and {place} contradict each other: both contain {file.name} of {file.platform}, with "
                f"different values, so nothing was imported. Remove one of them"
            )


def _import(options: argparse.Namespace) -> Iterator[str]:
    if options.kind:
        yield from _import_numbers(options)
        return
    choice = selection(options.parts)
    counts = {"new": 0, "replaced": 0, "kept": 0}

    def chosen() -> Iterator[tuple[str, BaselineFile]]:
        for source in options.source:
            for place, file in entries_of(source):
                if choice(file.name) and options.platform in ("", file.platform):
                    yield place, file

    with contextlib.suppress(StoredFileError):  # told below, when what stands before it is in
        _refuse_contradictions(chosen())
    for _, file in chosen():
        store = BaselineStore(options.baselines, file.platform)
        stored = store.entry(file.test, file.key)
        done = "new" if stored is None else "kept" if stored == file.entry or options.existing == "keep" else "replaced"
        if done != "kept":
            store.write(file.test, file.key, file.entry, sync=False)
            yield f"{done}  {file.platform}  {file.name}"
        counts[done] += 1
    if not sum(counts.values()):
        of = f" of platform {options.platform}" if options.platform else ""
        sources = ", ".join(map(str, options.source))
        raise DistbenchError(f"{sources}: no matching baseline{of}, so nothing was imported")
    yield ", ".join(f"{number} {what}" for what, number in counts.items())


_TEST = re.compile(r"(?P<test>[^[\]]+::[^[\]]+?)(?:\[(?P<case>.*)\])?")


def _add_options_of_numbers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "of nccl-tests and rccl-tests",
        "their output, or their JSON; several files are several runs of the same benchmark",
    )
    group.add_argument(
        "--as", dest="kind", choices=("bounds", "baseline"), default="", help="what to make of the numbers"
    )
    group.add_argument(
        "--test", metavar="NODEID", default="", help="test that gets them: 'suites/a.py::test_b[float32-ws8]'"
    )
    group.add_argument("--world-size", metavar="N", type=int, help="ranks of that test (default: as the file says)")
    group.add_argument("--backend", metavar="NAME", default="nccl", help="of that test (default: nccl)")
    group.add_argument("--launcher", metavar="NAME", default="warm", help="of that test (default: warm)")
    group.add_argument(
        "--metric", choices=("latency", "busbw"), default="latency", help="metric to bound (default: latency)"
    )
    group.add_argument(
        "--margin", metavar="X", default="0%", help="margin of the bounds towards worse: 10%% or 0.1 (default: 0%%)"
    )
    group.add_argument(
        "--column",
        choices=("in-place", "out-of-place"),
        default="in-place",
        help="columns to take (default: in-place)",
    )
    group.add_argument("--dtype", metavar="NAME", default="", help="if the files have rows of several")
    group.add_argument("--redop", metavar="NAME", default="", help="if the files have rows of several")
    group.add_argument("--min-size", metavar="SIZE", default="1", help="smallest message, such as 64KiB")
    group.add_argument("--max-size", metavar="SIZE", default="", help="largest message, such as 64MiB")


def _import_numbers(options: argparse.Namespace) -> Iterator[str]:
    """``import --as bounds|baseline``: numbers of nccl-tests and rccl-tests become those of a test."""
    name = _name(options)
    rows = Rows(
        in_place=options.column == "in-place",
        dtype=options.dtype,
        redop=options.redop,
        least=parse_bytes(options.min_size),
        most=parse_bytes(options.max_size) if options.max_size else None,
    )
    margin = _margin(options.margin)
    outputs = [output for source in options.source for output in read_perf_output(source)]
    chosen = [rows.of(output) for output in outputs]
    ranks = _ranks(outputs, options.world_size)
    first = chosen[0][0]
    runs = f"{len(outputs)} run{'s' * (len(outputs) != 1)}"
    facts = [outputs[0].program, f"{ranks} ranks", outputs[0].device, first.dtype, first.redop.replace("none", "")]
    yield f"{runs}: {', '.join(filter(None, [*facts, options.column]))}"
    if not all(output.is_whole for output in outputs):
        yield "? a run has no summary at its end; it may be cut off, and its results were not checked"
    made: Mapping[str, Any]
    if options.kind == "bounds":
        made = bounds_of(chosen, metric=options.metric, margin=margin)
    elif len(outputs) < 2:
        raise ConfigurationError(
            "--as baseline: the noise of one run is unknown: give the files of several runs, or --as bounds"
        )
    else:
        made = baselines_of(chosen, in_place=rows.in_place)
        yield "these tools time calls in a loop, the sweep times each call, so small messages take longer there"
    if left_out := len({row.size for run in chosen for row in run}) - len(made):
        yield f"{left_out} size{'s' * (left_out != 1)} left out: printed as 0, or not in every run"
    yield _store(options, name, ranks, made)


def _store(options: argparse.Namespace, name: EntryName, ranks: int, made: Mapping[str, Any]) -> str:
    store = BaselineStore(options.baselines, name.platform)
    stored = store.entry(name.test, name.key)
    entry = stored or BaselineEntry(
        workload="",
        conditions=Conditions(world_size=ranks, backend=options.backend, launcher=options.launcher),
        software={},
        metrics={},
    )
    if (stored_ranks := entry.conditions.world_size) != ranks:
        raise ConfigurationError(f"{name} is stored with {stored_ranks} ranks; these numbers are of {ranks}")
    field = "bounds" if options.kind == "bounds" else "metrics"
    before: dict[str, Any] = getattr(entry, field)
    both = {**before, **made} if options.existing == "replace" else {**made, **before}
    kept = sum(key in before for key in made) if options.existing == "keep" else 0
    changed = sum(before.get(key) != value for key, value in both.items())
    if changed:
        store.write(name.test, name.key, replace(entry, **{field: both}), sync=False)
    there = f", {kept} there already were kept (--existing replace)" if kept else ""
    done = "new" if stored is None else "changed" if changed else "kept"
    return f"{done}  {name.platform}  {name}: {changed} {field}{there}"


def _name(options: argparse.Namespace) -> EntryName:
    lacking = [option for option in ("test", "platform") if not getattr(options, option)]
    if lacking:
        raise ConfigurationError(
            f"import --as {options.kind}: such files do not name the test and the platform: give "
            f"{' and '.join(f'--{option}' for option in lacking)}; 'distbench baseline list' shows both"
        )
    found = _TEST.fullmatch(options.test)
    if found is None:
        raise ConfigurationError(
            f"--test {options.test!r}: wanted a node id such as 'suites/a.py::test_b[float32-ws8]'"
        )
    key = key_text(found["case"] or "", options.backend, options.launcher)
    return EntryName(platform=options.platform, test=found["test"], key=key)


def _ranks(outputs: list[PerfOutput], given: int | None) -> int:
    for what, found in (
        ("programs", {_operation(output.program) for output in outputs if output.program}),
        ("numbers of ranks", {output.ranks for output in outputs if output.ranks is not None}),
    ):
        if len(found) > 1:
            raise ConfigurationError(
                f"the runs are of several {what}, {', '.join(map(str, sorted(found, key=str)))}: import one"
            )
    told = next((output.ranks for output in outputs if output.ranks is not None), None)
    if given is not None and told is not None and given != told:
        raise ConfigurationError(f"--world-size {given}: the numbers are of {told} ranks")
    if (ranks := given if given is not None else told) is None or ranks < 1:
        raise ConfigurationError("the files do not say how many ranks there were: give --world-size N")
    return ranks


def _operation(program: str) -> str:
    """One spelling for ``all_reduce_perf``, ``all_reduce_perf_mpi`` and ``AllReduce``."""
    return re.sub("[^a-z]", "", program.partition("_perf")[0].lower())


def _margin(text: str) -> float:
    share = as_share(text)
    if share is None or not 0 <= share < 1:
        raise ConfigurationError(f"--margin {text!r}: wanted a fraction such as 10% or 0.1, from 0 to below 1")
    return share
