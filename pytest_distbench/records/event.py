"""What happens in a launch: events, which several processes append to one file, line by line, and a record keeps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from pytest_distbench.records.record import Record


class Event(Record, frozen=True, kw_only=True):
    """Something that happened in a launch. A fact of it is read as an attribute: ``event.step``."""

    t: float
    """Seconds: in a file CLOCK_MONOTONIC, which all processes of a host share; in a record since its clock began."""
    what: str
    slot: int = -1
    """The slot, or the rank, where it happened; -1: it is of the whole launch."""
    facts: dict[str, Any] = {}
    """JSON values by name; what happened has a row somewhere that says which."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self.facts[name]
        except KeyError:
            raise AttributeError(f"{self.what} has no fact {name}; it has {', '.join(self.facts)}") from None


def append(path: Path, event: Event) -> None:
    """Append an event, in one write: it is whole or not there, and lines of several processes do not mix."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, msgspec.json.encode(event) + b"\n")
    finally:
        os.close(descriptor)


_DECODER = msgspec.json.Decoder(Event)


class EventReader:
    """Reads a file of events while it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[Event]:
        """The events since the last call. What is not whole is read when it is; what is no event is passed over."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        found = []
        for text in whole.splitlines():
            try:
                found.append(_DECODER.decode(text))
            except msgspec.DecodeError:  # a process was killed while it wrote
                continue
        return found


def read_events(path: Path) -> list[Event]:
    return sorted(EventReader(path).read(), key=lambda event: event.t)
