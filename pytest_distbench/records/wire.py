"""Messages between a rank and its site, as events, and how long a rank waits for what.

Each launch has one Unix socket, with a JSON line per event; requests are a byte. Several processes append other events
to one file, line by line, and a record keeps them.

The waits are shares of the launch's time: they nest, so that the inner one explains. gloo raises if a rank has waited
too long, and the traceback says where: that comes before the launch's own end. NCCL does not raise. Its watchdog ends
the process a minute later (``launch/evidence.py``), and with it the stacks and the recorder that show which rank is
missing: under NCCL the launch's own end comes first.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from pytest_distbench.records.record import Record


class Event(Record, frozen=True, kw_only=True):
    """Something that happened in a launch. Facts are read as attributes: ``event.step``."""

    t: float
    """Seconds: in a file CLOCK_MONOTONIC, which all processes of a host share; in a record, since its beginning."""
    what: str
    slot: int = -1  # the slot, or the rank, where it happened; -1: the whole launch
    facts: dict[str, Any] = {}  # JSON values by name; which ones depends on ``what``

    def __getattr__(self, name: str) -> Any:
        try:
            return self.facts[name]
        except KeyError:
            raise AttributeError(f"{self.what} has no fact {name}; it has {', '.join(self.facts)}") from None


def append(path: Path, event: Event) -> None:
    """Append an event in one write: it is whole or absent, and lines of several processes do not mix."""
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
        """Return the events since the last call. A partial line waits until it is complete; invalid lines are
        skipped."""
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


SESSION_VARIABLE = "DISTBENCH_SESSION"  # in the environment of every process any launcher of this pytest session starts

STACKS_SIGNAL = signal.SIGUSR1
"""Signal that makes a rank write its Python stacks to :meth:`LaunchFiles.stacks`, even while blocked in a
collective."""

TURN_REQUEST = b"g"  # byte to a rank: it is your group's turn; the answer to the event ``turn``

ALL_UP = b"u"  # byte to a rank: every rank has said hello, so that waiting for one another begins now

ALL_JOINED = b"j"  # byte to a rank: every rank has begun its body, so that none needs the others to join its group

FLIGHT_REQUEST = b"f"  # byte to a rank: write the flight recorder's last collectives to :meth:`LaunchFiles.flight`

_CLEANERS = (b"resource_tracker import main", b"torch_shm_manager")
"""Parts of the command lines of Python's resource trackers and of torch's manager of shared files."""


def cleans_up(command_line: bytes) -> bool:
    """Whether a process, by its command line, removes files and semaphores of others when they have ended.

    Args:
        command_line: content of /proc/PID/cmdline.
    """
    return any(cleaner in command_line for cleaner in _CLEANERS)


XFAILED = "XFailed"  # name of the exception pytest.xfail raises; a rank that does so stands down, as one that skips

_LONGEST_ADDRESS = 100

RankWord = Literal["hello", "phase", "progress", "failed", "skipped", "done", "remark", "turn"]
"""Kinds of event that a rank sends."""


def rank_event(what: RankWord, rank: int, at: float, text: str = "") -> Event:
    """Make an event of a rank at CLOCK_MONOTONIC seconds: the rank's, and in the controller the controller's.

    ``text`` is the phase, what to show as progress, or what a rank that passed could not end.
    """
    return Event(what=what, slot=rank, t=at, facts={"text": text})


class Lines:
    """Splits a stream of bytes into whole lines. A line of any length is put together once."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []

    def take(self, data: bytes) -> list[bytes]:
        first, *others = data.split(b"\n")
        self._begun.append(first)
        if not others:
            return []
        *lines, rest = b"".join(self._begun), *others
        self._begun = [rest]
        return lines


def variables_to_wire(variables: Mapping[str, str]) -> dict[str, str]:
    """Environment variables as text that JSON can hold: they are bytes, and need not be UTF-8."""
    return {os.fsencode(k).decode("latin-1"): os.fsencode(v).decode("latin-1") for k, v in variables.items()}


def variables_from_wire(variables: Mapping[str, str]) -> dict[str, str]:
    return {os.fsdecode(k.encode("latin-1")): os.fsdecode(v.encode("latin-1")) for k, v in variables.items()}


@contextlib.contextmanager
def short_address(path: Path) -> Iterator[str]:
    """A Unix socket's address, which holds 107 bytes, for a path of any length.

    Longer paths go through an open descriptor of the folder (Linux).
    """
    if len(os.fsencode(path)) <= _LONGEST_ADDRESS:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


_START_S = 120.0
_RANKS_A_SECOND = 100.0
_STORE_SHARE = 0.6
_GROUP_SHARE = 0.8
_BEYOND_S = 60.0  # more than ranks need to show where they are when the launch's time is over
_HEARTBEAT_S = 480.0  # torch's own limit for a watchdog that makes no progress
_YES = ("1", "y", "yes", "t", "true")


def start_s(ranks: int) -> float:
    """Seconds that ranks may need to start, besides the launch's: torchrun imports torch in each of them."""
    return _START_S + ranks / _RANKS_A_SECOND


def store_s(timeout_s: float) -> float:
    """Seconds of the launch's time that a rank waits for the others to meet."""
    return timeout_s * _STORE_SHARE


def collective_s(backend: str, timeout_s: float, variables: Mapping[str, str]) -> float:
    """Seconds a rank waits in a collective: ``TORCH_NCCL_BLOCKING_WAIT`` makes NCCL raise as gloo does."""
    if backend == "nccl" and variables.get("TORCH_NCCL_BLOCKING_WAIT", "").lower() not in _YES:
        return timeout_s + _BEYOND_S
    return timeout_s * _GROUP_SHARE


def heartbeat_s(timeout_s: float) -> float:
    """Seconds after which a stuck NCCL watchdog ends its rank: not before the launch's end."""
    return max(_HEARTBEAT_S, timeout_s + _BEYOND_S)
