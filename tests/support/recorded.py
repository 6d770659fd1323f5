"""Run records of the commands of docs/dev/reports.md, as small as they can be kept: tests/data/reports.

``python tests/support/recorded.py RUN.json 004 --without light`` makes one of a run with ``--distbench-launches=1:1``:
without the tests that have the word in their names, without what they were compared with and what is at its default,
and with numbers of four digits.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from pathlib import Path
from typing import Any

import msgspec

from pytest_distbench.records.record import replace
from pytest_distbench.records.run import OtherSideRecord, RunRecord
from pytest_distbench.store.files import read_run_record

FOLDER = Path(__file__).parents[1] / "data" / "reports"
_OF_ITS_PLACE = ("json", "report", "confirm")
"""Settings that say where the run was recorded, and not what."""
_DATA = "s3://bucket/prefix"
"""What stands for the folder of ``--distbench-data``."""


def unpack(name: str, folder: Path) -> Path:
    """A recorded run as the file that it was."""
    path = folder / "run.json"
    path.write_bytes(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))
    return path


def small(value: object) -> Any:
    """A record as JSON has it, without the fields that are at their defaults."""
    if isinstance(value, msgspec.Struct):
        fields = [(field, getattr(value, field.name)) for field in msgspec.structs.fields(value)]
        if value.__struct_config__.array_like:
            return [small(found) for _, found in fields]
        return {field.encode_name: small(found) for field, found in fields if not _is_default(field, found)}
    if isinstance(value, dict):
        return {key: small(found) for key, found in value.items()}
    if isinstance(value, list | tuple):
        return [small(found) for found in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _is_default(field: msgspec.structs.FieldInfo, value: object) -> bool:
    made = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
    return made is not msgspec.NODEFAULT and bool(made == value)


def keep(record: RunRecord, name: str, without: str) -> None:
    """Write it to the folder."""
    told = replace(
        record,
        command=re.sub(r"(?:-p no:\S+|--distbench-(?:confirm|report|json)=\S+) ", "", record.command),
        settings={key: value for key, value in record.settings.items() if key not in _OF_ITS_PLACE},
        results=[
            replace(result, reference=OtherSideRecord(kind="nothing"))
            for result in record.results
            if not without or not re.search(without, result.nodeid)
        ],
    )
    text = re.sub(r'"/[^"]*/(launch\d+)"', r'"\1"', json.dumps(small(told), separators=(",", ":")))
    if data := record.settings.get("data"):
        text = text.replace(data, _DATA)
    (FOLDER / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    parser.add_argument("--without", default="")
    options = parser.parse_args()
    keep(read_run_record(options.run), options.name, options.without)
