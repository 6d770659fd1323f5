"""Reads a column of a CSV file with a header."""

from __future__ import annotations

import csv
import re

from pytest_distbench.errors import ReadingError, show
from pytest_distbench.launch.readers.place import Found, Place
from pytest_distbench.records.reader import Reader


def read(reader: Reader, place: Place) -> list[Found]:
    """The cells of the column ``reader.key`` that are not empty."""
    path = place.path(reader.source)
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        rows = csv.DictReader(file, skipinitialspace=True)
        columns = [name.strip() for name in rows.fieldnames or []]
        rows.fieldnames = columns
        if (there := columns.count(reader.key)) != 1:
            raise ReadingError(f"{path}: {_told(reader.key, there)}; {_header(columns)}")
        found = [
            Found(cell, f"{path}:{rows.line_num}", ", ".join(f"{name}={row[name]}" for name in columns))
            for row in rows
            if (cell := (row[reader.key] or "").strip())
        ]
    if not found:
        raise ReadingError(f"{path}: the column {reader.key!r} is empty")
    return found


def _told(key: str, columns: int) -> str:
    return f"{columns} columns are called {key!r}" if columns else f"no column {key!r}"


def _header(columns: list[str]) -> str:
    if len(columns) == 1 and re.search(r"[\t;|]", columns[0]):
        return f"its first line is {show(columns[0])}, without a comma, and commas separate the columns of a CSV file"
    return f"there are {', '.join(columns) or 'none'}"
