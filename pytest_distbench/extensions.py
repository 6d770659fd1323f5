"""The extensions, and the tables of the core that they add rows to.

An extension is a folder of this package. Its ``extension.py`` is its table of contents: ``ROWS`` has the places of its
rows, for each table of the core. The core imports none of them. A row is imported when its table is first looked at.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, MutableMapping
from typing import Any, TypeVar

EXTENSIONS = ["elastic", "hosts", "workloads", "layouts", "forecast", "tools"]
"""The extensions in use; deleting a line removes the fixtures, options and commands of that extension."""

_Key = TypeVar("_Key")
_Row = TypeVar("_Row")


def places(table: str) -> Iterator[tuple[Any, str]]:
    """The rows that extensions add to a table, as (key, place); a place is ``package.module:name``.

    A key that is a class is given by its place, too.
    """
    for name in EXTENSIONS:  # one whose folder is gone leaves this list too
        package = f"{__package__}.{name}"
        for key, place in importlib.import_module(f"{package}.extension").ROWS.get(table, {}).items():
            yield f"{package}.{key}" if ":" in key else key, f"{package}.{place}"


def find(place: str) -> Any:
    """Import the object at a place: ``package.module:name``."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


class Table(MutableMapping[_Key, _Row]):
    """Rows of the core, then those of the extensions, then those that a conftest or a plugin sets.

    Rows of extensions are imported when the table is first used, because their modules may import the table.
    """

    def __init__(self, name: str, rows: dict[_Key, _Row]) -> None:
        self._awaited = name
        self._rows = rows

    def _all(self) -> dict[_Key, _Row]:
        if name := self._awaited:
            self._awaited = ""
            for key, place in places(name):
                self._rows.setdefault(find(key) if ":" in key else key, find(place))
        return self._rows

    def __getitem__(self, key: _Key) -> _Row:
        return self._all()[key]

    def __setitem__(self, key: _Key, row: _Row) -> None:
        self._all()[key] = row

    def __delitem__(self, key: _Key) -> None:
        del self._all()[key]

    def __iter__(self) -> Iterator[_Key]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())
