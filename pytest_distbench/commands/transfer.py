"""``distbench baseline export / import``: the store as one file, and back."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec

from pytest_distbench.commands import acceptance
from pytest_distbench.commands.contract import Adder, choose_entries, read_chosen
from pytest_distbench.errors import ConfigurationError, DistbenchError, StoredFileError
from pytest_distbench.records.case import EntryName
from pytest_distbench.report.texts.escape import escape_cell
from pytest_distbench.store.baselines import BaselineFile, BaselineStore
from pytest_distbench.store.exchange import entries_of, write_json
from pytest_distbench.store.files import replace_file
from pytest_distbench.store.names import selection
from pytest_distbench.store.rows import entry_rows, write_csv, write_parquet

_FORMATS: Mapping[str, Callable[[Iterable[BaselineFile], BinaryIO], None]] = {
    "json": write_json,
    "csv": lambda files, out: write_csv(entry_rows(files), out, show=escape_cell),
    "parquet": lambda files, out: write_parquet(entry_rows(files), out),
}
"""Writers of the formats; only JSON can be imported again."""


def add(add_parser: Adder) -> None:
    """Add these commands to the group ``baseline``."""
    export = add_parser("export", help="all values of all launches in one file")
    export.add_argument(
        "--format",
        choices=_FORMATS,
        default="json",
        help="json: one entry a line, whole, can be imported (default); csv, parquet: one value a row, for analysis",
    )
    export.add_argument("-o", "--output", metavar="FILE", type=Path, help="default: standard output")
    choose_entries(export)
    export.set_defaults(command=_export)
    importing = add_parser(
        "import", help="add the entries of an exported file or another store, or numbers of nccl-tests and rccl-tests"
    )
    importing.add_argument(
        "source", metavar="FILE|DIR", type=Path, nargs="+", help="of export --format json, a store's folder, or a run"
    )
    importing.add_argument(
        "--existing", choices=("keep", "replace"), default="keep", help="what is here already (default: keep)"
    )
    choose_entries(importing)
    acceptance.add_options(importing)
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
    yield f"{number} {'entry' if number == 1 else 'entries'} written to {options.output}"


def _refuse_contradictions(found: Iterable[tuple[str, BaselineFile]]) -> None:
    """Of two entries of one name that differ nobody knows which is meant."""
    seen: dict[EntryName, tuple[str, bytes]] = {}
    for place, file in found:
        digest = hashlib.blake2b(msgspec.json.encode(file.entry, order="sorted")).digest()
        first, known = seen.setdefault(file.name, (place, digest))
        if known != digest:
            raise DistbenchError(
                f"{first} and {place} contradict each other: both hold {file.name} of {file.platform}, with other "
                "values: nothing imported. Remove one of them"
            )


def _import(options: argparse.Namespace) -> Iterator[str]:
    if options.kind:
        yield from acceptance.import_numbers(options)
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
        raise DistbenchError(f"{sources}: no entry{of} that was asked for: nothing imported")
    yield ", ".join(f"{number} {what}" for what, number in counts.items())
