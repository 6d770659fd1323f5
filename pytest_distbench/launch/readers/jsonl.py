"""Reads a file with one JSON object a line, as most training loggers write it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pytest_distbench.errors import ReadingError
from pytest_distbench.launch.readers.place import Found, Place
from pytest_distbench.records.reader import Reader


def read(reader: Reader, place: Place) -> list[Found]:
    """``reader.key`` of every line that has it; ``a.b`` is ``b`` inside ``a``, unless there is an ``a.b``."""
    path = place.path(reader.source)
    found, keys = [], dict[str, None]()
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ReadingError(f"{path}:{number}: no JSON: {error}: {line.strip()[:80]!r}") from None
            value = _look_up(row, reader.key)
            if value is not None:
                found.append(Found(json.dumps(value).strip('"'), f"{path}:{number}", line.strip()))
            elif isinstance(row, Mapping):
                keys.update(dict.fromkeys(row))
    if not found:
        raise ReadingError(f"{path}: no line has {reader.key!r}; there are {', '.join(keys) or 'none'}")
    return found


def _look_up(row: object, key: str) -> object:
    if not isinstance(row, Mapping):
        return None
    if key in row:
        return row[key]
    first, separator, rest = key.partition(".")
    return _look_up(row.get(first), rest) if separator else None
