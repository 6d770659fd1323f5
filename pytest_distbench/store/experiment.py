"""The file that ``--distbench-experiment`` takes: what a run's author or operator states of it; docs/experiment.md."""

from __future__ import annotations

from pathlib import Path

from pytest_distbench.machine.addresses import host_name, mask_addresses
from pytest_distbench.machine.secrets import mask_secrets
from pytest_distbench.records.experiment import FIELDS, Experiment, Statement
from pytest_distbench.records.wanted import NAMED, YES_OR_NO, Wanted, whole
from pytest_distbench.store.toml_file import TomlTable, read_toml

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
