"""TOML files that users write: read key by key, and what is wrong with one is told with its file and its key."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pytest_distbench.errors import StoredFileError, show
from pytest_distbench.records.wanted import Wanted
from pytest_distbench.store.files import read_limited

_MOST_BYTES = 2**20
_Found = TypeVar("_Found")


class TomlTable:
    """A table of such a file. Its keys are taken one by one; :meth:`end` refuses those that nobody took.

    Args:
        path: of the file, for errors.
        content: of the table.
        next_step: for errors.
        name: of the table in the file, with a dot behind it; empty: it is the file.
    """

    def __init__(self, path: Path, content: Mapping[str, Any], *, next_step: str, name: str = "") -> None:
        self._path, self._content, self._next_step, self._name = path, content, next_step, name
        self._taken: list[str] = []

    def take(self, key: str, wanted: Wanted[_Found]) -> _Found:
        """The value of a key.

        Raises:
            StoredFileError: it is missing, or of another kind.
        """
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
        """The tables below a key by their names: ``[key.name]``."""
        self._taken.append(key)
        found = self._content.get(key, {})
        if not isinstance(found, dict):
            self.refuse(key, f"tables [{key}.NAME]", show(found))
        for name, inner in found.items():
            if not isinstance(inner, dict):
                self.refuse(f"{key}.{name}", f"a table [{key}.NAME]", show(inner))
            yield name, TomlTable(self._path, inner, next_step=self._next_step, name=f"{self._name}{key}.{name}.")

    def end(self) -> None:
        """All keys were taken.

        Raises:
            StoredFileError: there are others.
        """
        for key in self._content:
            if key not in self._taken:
                self.refuse(key, f"one of the keys {', '.join(self._taken)}", "a key that is none of them")

    def refuse(self, key: str, wanted: str, found: str) -> NoReturn:
        """Say what is wrong with a key.

        Raises:
            StoredFileError: always.
        """
        raise StoredFileError(self._path, f"{self._name}{key}: wanted {wanted}; found {found}", self._next_step)


def read_toml(path: Path, *, next_step: str) -> TomlTable:
    """Read such a file.

    Raises:
        StoredFileError: it cannot be read, or is no TOML; the message has the line.
    """
    try:
        content = tomllib.loads(read_limited(path, _MOST_BYTES, next_step=next_step).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StoredFileError(path, f"is no TOML: {error}", next_step) from None
    return TomlTable(path, content, next_step=next_step)
