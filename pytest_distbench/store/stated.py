"""TOML files that users write, read key by key; what is wrong with one is told with its file and its key.

They are the price list that ``distbench report --prices`` takes (docs/cost.md has one), and what a run's author or
operator states of it (``--distbench-experiment``, docs/experiment.md).
"""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pytest_distbench.errors import StoredFileError, show
from pytest_distbench.machine.hardware import host_name, mask_addresses
from pytest_distbench.machine.secrets import mask_secrets
from pytest_distbench.records.stated import FIELDS, TERMS, Experiment, Machine, Prices, Statement, Term
from pytest_distbench.records.wanted import NAMED, YES_OR_NO, Wanted, number, one_of, text, whole
from pytest_distbench.store.files import read_limited

_MOST_BYTES = 2**20
_Found = TypeVar("_Found")


class TomlTable:
    """A table of such a file. Its keys are taken one by one; :meth:`end` refuses those that nobody took.

    Args:
        name: of the table in the file, with a dot behind it; empty: it is the file.
    """

    def __init__(self, path: Path, content: Mapping[str, Any], *, next_step: str, name: str = "") -> None:
        self._path, self._content, self._next_step, self._name = path, content, next_step, name
        self._taken: list[str] = []

    def take(self, key: str, wanted: Wanted[_Found]) -> _Found:
        """Raises :class:`StoredFileError` where it is missing, or of another kind."""
        if (found := self.take_if(key, wanted)) is None:
            self.refuse(key, wanted.words, "nothing")
        return found

    def take_if(self, key: str, wanted: Wanted[_Found]) -> _Found | None:
        """The same where the key may be missing: None then."""
        self._taken.append(key)
        if key not in self._content:
            return None
        found = wanted.take(value := self._content[key])
        if found is None:
            self.refuse(key, wanted.words, show(value))
        return found

    def tables(self, key: str) -> Iterator[tuple[str, TomlTable]]:
        self._taken.append(key)
        found = self._content.get(key, {})
        if not isinstance(found, dict):
            self.refuse(key, f"tables [{key}.NAME]", show(found))
        for name, inner in found.items():
            if not isinstance(inner, dict):
                self.refuse(f"{key}.{name}", f"a table [{key}.NAME]", show(inner))
            yield name, TomlTable(self._path, inner, next_step=self._next_step, name=f"{self._name}{key}.{name}.")

    def end(self) -> None:
        """Raises :class:`StoredFileError` where there are keys that nobody took."""
        for key in self._content:
            if key not in self._taken:
                self.refuse(key, f"one of the keys {', '.join(self._taken)}", "a key that is none of them")

    def refuse(self, key: str, wanted: str, found: str) -> NoReturn:
        raise StoredFileError(self._path, f"{self._name}{key}: wanted {wanted}; found {found}", self._next_step)


def read_toml(path: Path, *, next_step: str) -> TomlTable:
    """Raises :class:`StoredFileError`, which has the line of what is no TOML."""
    try:
        content = tomllib.loads(read_limited(path, _MOST_BYTES, next_step=next_step).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StoredFileError(path, f"is no TOML: {error}", next_step) from None
    return TomlTable(path, content, next_step=next_step)


_NEXT_STEP = "docs/cost.md has a price list to start from"

_CURRENCY = Wanted(
    "a currency in three capital letters, such as USD",
    lambda value: value if isinstance(value, str) and re.fullmatch(r"[A-Z]{3}", value) else None,
)
_DATE = Wanted(
    "the day on which the prices were read, such as 2020-10-05, without quotes, and no later one than today",
    lambda value: value if type(value) is datetime.date and value <= _tomorrow() else None,  # no datetime, which is one
)


def _tomorrow() -> datetime.date:
    """It is today already where the day begins earlier than here."""
    return datetime.datetime.now(tz=datetime.UTC).date() + datetime.timedelta(days=1)


_UNIT = one_of(["hour"])
_PRICE = number(least=0)
_RANKS = whole(1)
_NO_ACCELERATOR: Wanted[str] = Wanted("nothing, as there is no table [accelerator.NAME]", lambda _: None)


def _platforms(value: object) -> list[str] | None:
    is_list = isinstance(value, list) and value and all(isinstance(name, str) and name for name in value)
    return list(value) if is_list else None  # type: ignore[call-overload] # it is one


_PLATFORMS = Wanted('a list of hardware classes, such as ["cpu-intel-*"]', _platforms)


def read_prices(path: Path) -> Prices:
    """Raises :class:`StoredFileError`, which has file, key, what was wanted and what was found."""
    table = read_toml(path, next_step=_NEXT_STEP)
    currency, day, source = table.take("currency", _CURRENCY), table.take("date", _DATE), table.take("source", text())
    table.take("per", _UNIT)
    accelerators = {name: _prices(inner) for name, inner in table.tables("accelerator")}
    machines = [_machine(name, inner, accelerators) for name, inner in table.tables("machine")]
    if not machines:
        table.refuse("machine", "at least one table [machine.NAME]", "none")
    table.end()
    return Prices(currency=currency, date=day, source=source, machines=machines)


def _prices(table: TomlTable, *, ends: bool = True) -> dict[Term, float]:
    found: dict[Term, float] = {term: price for term in TERMS if (price := table.take_if(term, _PRICE)) is not None}
    if not found:
        table.refuse(TERMS[0], f"a price, {' or '.join(TERMS)}, as {_PRICE.words}", "neither")
    if ends:
        table.end()
    return found


def _machine(name: str, table: TomlTable, accelerators: dict[str, dict[Term, float]]) -> Machine:
    per_hour = _prices(table, ends=False)
    ranks = table.take("ranks_per_node", _RANKS)
    platforms = table.take_if("platforms", _PLATFORMS) or ["*"]
    accelerator = table.take_if("accelerator", one_of(accelerators) if accelerators else _NO_ACCELERATOR)
    each = table.take_if("accelerators_per_node", _RANKS)
    table.end()
    if (accelerator is None) != (each is None):
        lacking = "accelerator" if accelerator is None else "accelerators_per_node"
        table.refuse(lacking, "accelerator and accelerators_per_node together", "nothing")
    if accelerator is not None and each is not None:
        prices = accelerators[accelerator]
        if not (shared := [term for term in per_hour if term in prices]):
            table.refuse(
                "accelerator", f"one with a price that is {' or '.join(per_hour)}, as the machine's", accelerator
            )
        per_hour = {term: per_hour[term] + each * prices[term] for term in shared}
    return Machine(name=name, per_hour=per_hour, ranks_per_node=ranks, platforms=platforms)


_ADDRESSES = "addresses"


def _words(value: object) -> str | None:
    match value:
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return str(value)
        case str():
            return " ".join(value.split()) or None
    return None


_STATED = Wanted("text, a number, true or false", _words)

_SERVERS = whole(1)
_OF_ITS_KIND = {
    "servers": Wanted("a whole number of at least 1", lambda value: _words(_SERVERS.take(value))),
    "behind_gateway": Wanted("true or false", lambda value: _words(YES_OR_NO.take(value))),
}
"""What else than :data:`_STATED` is wanted of some keys."""


def _plan(value: object) -> dict[str, str] | None:
    named = NAMED.take(value) or {}
    found = {name: words for name, stated in named.items() if (words := _words(stated)) is not None}
    return found if found and len(found) == len(named) else None


_PLANNED = Wanted("names of what the table environment has, and what each is to become, as text", _plan)


def read_experiment(path: Path | None, *, with_addresses: bool) -> Experiment:
    """What is stated, as it may be stored: secrets are masked, and addresses too unless they are asked for; where none
    are stated, this machine's name is one.
    """
    own = [Statement(fields={_ADDRESSES: host_name()})] if with_addresses else []
    if path is None:
        return Experiment(statements=own)
    table = read_toml(path, next_step="docs/experiment.md has an example, and what each key means")
    planned = table.take_if("planned", _PLANNED) or {}
    tests = [(name, _fields(inner, with_addresses=with_addresses)) for name, inner in table.tables("test")]
    of_all = _fields(table, with_addresses=with_addresses)
    stated = [Statement(of=of, fields=fields) for of, fields in [("", of_all), *tests] if fields]
    return Experiment(statements=[*own, *stated], planned=_storable(planned, with_addresses=with_addresses))


def _fields(table: TomlTable, *, with_addresses: bool) -> dict[str, str]:
    wanted = {key: _OF_ITS_KIND.get(key, _STATED) for key in FIELDS}
    stated = {key: value for key, kind in wanted.items() if (value := table.take_if(key, kind)) is not None}
    table.end()
    return _storable(stated, with_addresses=with_addresses)


def _storable(stated: dict[str, str], *, with_addresses: bool) -> dict[str, str]:
    masked: dict[str, str] = mask_secrets(stated)  # by their keys, too
    if with_addresses:
        return masked
    return {key: mask_addresses(value) for key, value in masked.items() if key != _ADDRESSES}
