"""Reads a column of a CSV file with a header."""

from __future__ import annotations

import csv

from pytest_distbench.errors import ReadingError
from pytest_distbench.launch.readers.place import Found, Place
from pytest_distbench.records.reader import Reader


def read(reader: Reader, place: Place) -> list[Found]:
    """The cells of the column ``reader.key`` that are not empty."""
    path = place.path(reader.source)
    with path.open(newline="", errors="replace") as file:
        rows = csv.DictReader(file, skipinitialspace=True)
        columns = [name.strip() for name in rows.fieldnames or []]
        rows.fieldnames = columns
        if reader.key not in columns:
            raise ReadingError(f"{path}: no column {reader.key!r}; there are {', '.join(columns) or 'none'}")
        found = [
            Found(cell, f"{path}:{rows.line_num}", ", ".join(f"{name}={row[name]}" for name in columns))
            for row in rows
            if (cell := (row[reader.key] or "").strip())
        ]
    if not found:
        raise ReadingError(f"{path}: the column {reader.key!r} is empty")
    return found
