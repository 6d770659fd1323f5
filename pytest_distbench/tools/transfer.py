"""``distbench baseline export`` and ``import``: stored entries as files, and back; and numbers of nccl-tests."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from pytest_distbench.commands import Command, choose_entries, read_chosen
from pytest_distbench.errors import ConfigurationError, DistbenchError, StoredFileError
from pytest_distbench.records.case import BaselineEntry, Conditions, EntryName, key_text
from pytest_distbench.records.record import replace
from pytest_distbench.report.texts import escape_cell
from pytest_distbench.store.baselines import BASELINE_FILES, MAX_FILE_BYTES, BaselineFile, BaselineStore, encode
from pytest_distbench.store.entries import selection
from pytest_distbench.store.files import open_regular, replace_file
from pytest_distbench.store.rows import ColumnType, Table, write_csv, write_parquet
from pytest_distbench.tools.perf_output import PerfOutput, Rows, baselines_of, bounds_of, read_perf_output
from pytest_distbench.units import as_share, parse_bytes

_WANTED = (
    "Give the output of 'distbench baseline export --format json', or a baseline directory; with --as bounds or "
    "--as baseline the output of nccl-tests or rccl-tests"
)


def write_json(files: Iterable[BaselineFile], out: BinaryIO) -> None:
    out.writelines(encode(file) + b"\n" for file in files)


def entries_of(source: Path) -> Iterator[tuple[str, BaselineFile]]:
    """The entries of an exported JSON file, or of another store's folder, one at a time, and where each stands."""
    if source.is_dir():
        for platform in BaselineStore(source, "").platforms():
            yield from ((f"{source}, {platform}", file) for file in BaselineStore(source, platform).read_all())
        return
    try:
        with open_regular(source, next_step=_WANTED) as lines:
            number = 0
            while line := lines.readline(MAX_FILE_BYTES + 1):
                number += 1
                place = f"{source}:{number}"
                yield place, BASELINE_FILES.parse(line, Path(place), next_step=_WANTED)
    except OSError as error:
        raise StoredFileError(source, f"cannot read: {error.strerror or error}", _WANTED) from error


ENTRY_COLUMNS: Mapping[str, ColumnType] = {
    "platform": str, "test": str, "key": str, "world_size": int, "backend": str, "launcher": str, "workload": str,
    "metric": str, "unit": str, "better": str, "launch": int, "value": float,
}  # fmt: skip
"""Of stored entries; ``metric`` is the metric's name and point."""


def entry_rows(files: Iterable[BaselineFile]) -> Table:
    return Table(ENTRY_COLUMNS, (row for file in files for row in _rows_of_entry(file)))


def _rows_of_entry(file: BaselineFile) -> Iterator[tuple[object, ...]]:
    entry = file.entry
    under = entry.conditions
    case = (file.platform, file.test, file.key, under.world_size, under.backend, under.launcher, entry.workload)
    for key, metric in entry.metrics.items():
        for launch, m in enumerate(metric):
            yield (*case, key, m.unit, m.better, launch, m.value)


_FORMATS: Mapping[str, Callable[[Iterable[BaselineFile], BinaryIO], None]] = {
    "json": write_json,
    "csv": lambda files, out: write_csv(entry_rows(files), out, show=escape_cell),
    "parquet": lambda files, out: write_parquet(entry_rows(files), out),
}
"""Writers of the formats; only JSON can be imported again."""


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        choices=_FORMATS,
        default="json",
        help="json (default): a baseline per line, for import; csv, parquet: a value per row",
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="default: standard output")
    choose_entries(parser)


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        metavar="FILE|DIR",
        type=Path,
        nargs="+",
        help="a file of export --format json, a baseline directory, or a run",
    )
    parser.add_argument(
        "--existing", choices=("keep", "replace"), default="keep", help="baselines that exist already (default: keep)"
    )
    choose_entries(parser)
    _add_options_of_numbers(parser)


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


EXPORT = Command("write all values of all launches into one file", _add_export, _export)
IMPORT = Command(
    "add baselines of a file or another directory, or numbers of nccl-tests and rccl-tests", _add_import, _import
)
