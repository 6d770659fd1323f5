"""The records of runs, metrics over a folder of them, and what users state of a run in TOML: prices, an experiment."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pytest_distbench.errors import StoredFileError
from pytest_distbench.machine.hardware import host_name, mask_addresses
from pytest_distbench.machine.secrets import mask_secrets
from pytest_distbench.records.environment import Experiment, Prices, Statement
from pytest_distbench.records.run import RunRecord
from pytest_distbench.store.files import FileKind, name_keys, read_limited

SCHEMA = 6
"""Version of the file format."""

RUN_RECORDS = FileKind(
    name="run record",
    record=RunRecord,
    schema=SCHEMA,
    max_bytes=512 * 2**20,
    next_step="Write one with pytest --distbench-json FILE",
    where="Give --distbench-json or --distbench-out a writable place",
)


def write_run_record(path: Path, record: RunRecord) -> None:
    RUN_RECORDS.write(path, record)


def read_run_record(path: Path) -> RunRecord:
    return RUN_RECORDS.read(path)


_MOST_BYTES = 2**20
_Kind = TypeVar("_Kind")


def read_toml(path: Path, kind: type[_Kind], *, next_step: str) -> _Kind:
    """Read such a file.

    Raises:
        StoredFileError: it cannot be read, is no TOML, or of another kind; the message has the line or the key.
    """
    try:
        content = read_limited(path, _MOST_BYTES, next_step=next_step).decode()
        return msgspec.toml.decode(content, type=kind)
    except msgspec.ValidationError as error:
        problem = name_keys(str(error), tomllib.loads(content), kind)
        raise StoredFileError(path, problem, next_step) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoredFileError(path, f"is no TOML: {error}", next_step) from None


def read_prices(path: Path) -> Prices:
    """Read a price list.

    Raises:
        StoredFileError: there is no such file, or it is none; the message has file, key, what was wanted and found.
    """
    return read_toml(path, Prices, next_step="distbench explain prices shows a price list")


_ADDRESSES = "addresses"
_Stated = str | int | float | bool


class _Tables(msgspec.Struct, frozen=True, kw_only=True):
    test: dict[str, dict[str, _Stated]] = {}
    planned: dict[str, _Stated] = {}


def read_experiment(path: Path | None, *, with_addresses: bool) -> Experiment:
    """What is stated, as it may be stored: secrets are masked, and addresses too unless they are asked for.

    Args:
        path: of the file; None: there is none.
        with_addresses: addresses are kept; where none are stated, this machine's name is one.

    Raises:
        StoredFileError: there is no such file, or it is none; the message has file, key, what was wanted and found.
    """
    own = [Statement(fields={_ADDRESSES: host_name()})] if with_addresses else []
    if path is None:
        return Experiment(statements=own)
    next_step = "distbench explain experiment shows such a file"
    tables = read_toml(path, _Tables, next_step=next_step)
    keys = read_toml(path, dict[str, _Stated | dict[str, Any]], next_step=next_step)
    of_all = {key: value for key, value in keys.items() if not isinstance(value, dict)}
    for name in keys:
        if name not in of_all and name not in _Tables.__struct_fields__:
            raise StoredFileError(path, f"{name}: wanted text, a number, true or false; found a table", next_step)
    stated = [
        Statement(of=of, fields=_storable(fields, with_addresses=with_addresses))
        for of, fields in [("", of_all), *tables.test.items()]
        if fields
    ]
    return Experiment(statements=[*own, *stated], planned=_storable(tables.planned, with_addresses=with_addresses))


def _storable(stated: Mapping[str, _Stated], *, with_addresses: bool) -> dict[str, str]:
    yes_or_no = {True: "yes", False: "no"}
    words = {k: yes_or_no[v] if isinstance(v, bool) else " ".join(str(v).split()) for k, v in stated.items()}
    masked: dict[str, str] = mask_secrets(words)  # by their keys, too
    if with_addresses:
        return masked
    return {key: mask_addresses(value) for key, value in masked.items() if key != _ADDRESSES}
