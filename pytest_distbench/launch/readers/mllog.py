"""Reads the lines that MLPerf's logging package prints: ``:::MLLOG {"key": ..., "value": ..., "time_ms": ...}``."""

from __future__ import annotations

import json
from typing import Any

from pytest_distbench.errors import ReadingError
from pytest_distbench.launch.readers.place import Found, Place
from pytest_distbench.records.reader import Reader

_MARK = ":::MLLOG"


def read(reader: Reader, place: Place) -> list[Found]:
    """The values of the events named ``reader.key``; with ``reader.since`` the seconds since the last of those."""
    found, known = [], dict[str, None]()
    since_ms: float | None = None
    for number, line in enumerate(place.lines(), 1):
        _, mark, text = line.partition(_MARK)
        if not mark:
            continue
        where = f"line {number} of rank {place.rank}'s output"
        event = _parse(text, where)
        known[str(event["key"])] = None
        if event["key"] == reader.since:
            since_ms = _time_ms(event, where)
        if event["key"] == reader.key:
            if not reader.since:
                found.append(Found(json.dumps(event.get("value")).strip('"'), where, text.strip()))
            elif since_ms is not None:
                found.append(Found(repr((_time_ms(event, where) - since_ms) / 1e3), where, text.strip()))
    if not found:
        wanted = f"{reader.key!r} after a {reader.since!r}" if reader.since else f"{reader.key!r}"
        raise ReadingError(
            f"rank {place.rank} logged no event {wanted}; there are {', '.join(known) or f'no {_MARK} lines'}"
        )
    return found


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        event = json.loads(text)
    except ValueError as error:
        raise ReadingError(f"{where}: no JSON after {_MARK}: {error}") from None
    if not isinstance(event, dict) or "key" not in event:
        raise ReadingError(f"{where}: an event without a key: {text.strip()[:80]!r}")
    return event


def _time_ms(event: dict[str, Any], where: str) -> float:
    time_ms = event.get("time_ms")
    if isinstance(time_ms, bool) or not isinstance(time_ms, int | float):
        raise ReadingError(f"{where}: the event {event['key']!r} has no time_ms")
    return float(time_ms)
