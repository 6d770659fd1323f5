"""Reads what a rank prints, by a regular expression."""

from __future__ import annotations

import re

from pytest_distbench.errors import ReadingError
from pytest_distbench.launch.readers.place import Found, Place, nearest
from pytest_distbench.records.reader import Reader

VALUE = "value"
"""Name of the group that holds the number, in a pattern with several."""


def read(reader: Reader, place: Place) -> list[Found]:
    """Every match of ``reader.source`` in the output, at most one a line."""
    pattern = re.compile(reader.source)
    group: int | str = VALUE if VALUE in pattern.groupindex else 1
    found = []
    for number, line in enumerate(place.lines(), 1):
        if (match := pattern.search(line)) is not None and match[group] is not None:
            where = f"line {number} of rank {place.rank}'s output: {line.strip()[:160]}"
            found.append(Found(match[group], where, line.strip()))
    if not found:
        lines = nearest(reader.source, place.lines())
        shown = "".join(f"\n{line}" for line in lines)
        told = f"; the nearest lines are:{shown}" if lines else ", which is empty"
        raise ReadingError(f"the pattern {reader.source!r} matches nothing in the output of rank {place.rank}{told}")
    return found
