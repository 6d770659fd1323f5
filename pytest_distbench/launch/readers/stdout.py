"""Reads what a rank prints, by a regular expression."""

from __future__ import annotations

import re

from pytest_distbench.errors import ReadingError
from pytest_distbench.launch.readers.place import Found, Place, nearest
from pytest_distbench.records.reader import NUMBER, Reader

VALUE = "value"
"""Name of the group that holds the number, in a pattern with several."""

_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][-+]?\d+)?", re.ASCII)
_NOT_FINITE = re.compile(r"(?<![\w.])[-+]?(?:nan|inf(?:inity)?)(?![\w.])", re.IGNORECASE)
_IN_ITS_PLACE = ("1.0", "1")
"""What a pattern takes for a number, in a line that says nan where one should stand."""


def read(reader: Reader, place: Place) -> list[Found]:
    """Every match of ``reader.source`` in the output, at most one a line."""
    pattern = re.compile(reader.source)
    group: int | str = VALUE if VALUE in pattern.groupindex else 1
    found = []
    for number, line in enumerate(place.lines(), 1):
        where = f"line {number} of rank {place.rank}'s output: {line.strip()[:160]}"
        if (match := pattern.search(line)) is not None and match[group] is not None:
            whole = _NUMBER.match(line, match.start(group))
            if whole is not None and whole.end() > match.end(group) and match[group][-1:].isdigit():
                raise ReadingError(
                    f"the pattern {_shown(reader)} takes {match[group]!r} of the number {whole[0]!r}: {where}. Let "
                    "its group take the whole number, as pytest_distbench.read.NUMBER does"
                )
            found.append(Found(match[group], where, line.strip()))
        elif (text := _not_finite(pattern, group, line)) is not None:
            found.append(Found(text, where, line.strip()))
    if not found:
        lines = nearest(reader.source, place.lines())
        shown = "".join(f"\n{line}" for line in lines)
        told = f"; the nearest lines are:{shown}" if lines else ", which is empty"
        raise ReadingError(f"the pattern {_shown(reader)} matches nothing in the output of rank {place.rank}{told}")
    return found


def _shown(reader: Reader) -> str:
    """The pattern as somebody wrote it: with the name of the group for numbers, not with what that stands for."""
    parts = [repr(part) for part in reader.source.split(NUMBER)]
    return " + NUMBER + ".join(parts).removesuffix(" + ''").removeprefix("'' + ")


def _not_finite(pattern: re.Pattern[str], group: int | str, line: str) -> str | None:
    """The nan or inf that stands where the pattern wants a number; None where there is none."""
    for found in _NOT_FINITE.finditer(line):
        for number in _IN_ITS_PLACE:
            match = pattern.search(line[: found.start()] + number + line[found.end() :])
            if match is not None and match.span(group) == (found.start(), found.start() + len(number)):
                return found[0]
    return None
