"""The records of runs, metrics over a folder of them, and what users state of a run in TOML: prices, an experiment."""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from pytest_distbench.errors import StoredFileError
from pytest_distbench.machine.hardware import host_name, mask_addresses
from pytest_distbench.machine.secrets import mask_secrets
from pytest_distbench.records.environment import TERMS, Experiment, Machine, Prices, Statement, Term
from pytest_distbench.records.record import Record
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


_Price = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
_Count = Annotated[int, msgspec.Meta(ge=1)]
_Text = Annotated[str, msgspec.Meta(min_length=1)]


class _Prices(Record, frozen=True, kw_only=True):
    regular: _Price | None = None
    preemptible: _Price | None = None

    def __post_init__(self) -> None:
        if not self.per_hour:
            raise ValueError(f"Expected a price, {' or '.join(TERMS)}, got neither")

    @property
    def per_hour(self) -> dict[Term, float]:
        return {term: price for term in TERMS if (price := getattr(self, term)) is not None}


class _Machine(_Prices, frozen=True, kw_only=True):
    ranks_per_node: _Count
    platforms: Annotated[list[_Text], msgspec.Meta(min_length=1)] = msgspec.field(default_factory=lambda: ["*"])
    accelerator: str | None = None
    accelerators_per_node: _Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.accelerator is None) != (self.accelerators_per_node is None):
            raise ValueError("Expected `accelerator` and `accelerators_per_node` together, got one of them")

    def with_accelerators(self, accelerators: Mapping[str, _Prices]) -> dict[Term, float]:
        """What an hour of it costs, by each term that both have."""
        if self.accelerator is None or self.accelerators_per_node is None:
            return self.per_hour
        if (each := accelerators.get(self.accelerator)) is None:
            known = ", ".join(accelerators) or "none"
            raise ValueError(f"Expected an `accelerator` of {known}, got {self.accelerator!r}")
        own, number = self.per_hour, self.accelerators_per_node
        found = {term: own[term] + number * price for term, price in each.per_hour.items() if term in own}
        if not found:
            raise ValueError(f"Expected an `accelerator` with a price that is {' or '.join(own)}, as the machine's")
        return found


class _PriceList(Record, frozen=True, kw_only=True):
    currency: Annotated[str, msgspec.Meta(pattern="^[A-Z]{3}$")]
    date: datetime.date
    source: _Text
    per: Literal["hour"]
    accelerator: dict[str, _Prices] = {}
    machine: Annotated[dict[str, _Machine], msgspec.Meta(min_length=1)]

    def __post_init__(self) -> None:
        tomorrow = datetime.datetime.now(tz=datetime.UTC).date() + datetime.timedelta(days=1)
        if self.date > tomorrow:  # it is today already where the day begins earlier than here
            raise ValueError(f"Expected a `date` on which the prices were read, got {self.date}")
        for name, machine in self.machine.items():
            try:
                machine.with_accelerators(self.accelerator)
            except ValueError as error:
                raise ValueError(f"{error} - at `$.machine[{name}]`") from None


def read_prices(path: Path) -> Prices:
    """Read a price list.

    Raises:
        StoredFileError: there is no such file, or it is none; the message has file, key, what was wanted and found.
    """
    found = read_toml(path, _PriceList, next_step="distbench explain prices shows a price list")
    machines = [
        Machine(
            name=name,
            per_hour=machine.with_accelerators(found.accelerator),
            ranks_per_node=machine.ranks_per_node,
            platforms=machine.platforms,
        )
        for name, machine in found.machine.items()
    ]
    return Prices(currency=found.currency, date=found.date, source=found.source, machines=machines)


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
    masked: dict[str, str] = mask_secrets({key: _words(value) for key, value in stated.items()})  # by their keys, too
    if with_addresses:
        return masked
    return {key: mask_addresses(value) for key, value in masked.items() if key != _ADDRESSES}


def _words(value: _Stated) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(str(value).split())
