"""What a rank and its site say to each other: one Unix socket per launch, a JSON line per event, requests of a byte."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from pytest_distbench.records.record import Record

SESSION_VARIABLE = "DISTBENCH_SESSION"
"""In the environment of every process any launcher of this pytest session starts."""

STACKS_SIGNAL = signal.SIGUSR1
"""Makes a rank write the Python stacks of its threads to :meth:`LaunchFiles.stacks`, also while it is
blocked in a collective."""

TURN_REQUEST = b"g"
"""Byte to a rank: it is your group's turn; the answer to the event ``turn``."""

ALL_UP = b"u"
"""Byte to a rank: every rank has said hello, so that waiting for one another begins now."""

ALL_JOINED = b"j"
"""Byte to a rank: every rank has begun its body, so that none needs the others to join its group."""

FLIGHT_REQUEST = b"f"
"""Byte to a rank: write the flight recorder's last collectives to :meth:`LaunchFiles.flight`."""

_CLEANERS = (b"resource_tracker import main", b"torch_shm_manager")
"""In the command lines of Python's resource trackers and of torch's manager of shared files."""


def cleans_up(command_line: bytes) -> bool:
    """Whether a process removes what others leave behind, once they have ended. Who kills it first leaves it for ever.

    Args:
        command_line: as /proc/PID/cmdline has it.
    """
    return any(cleaner in command_line for cleaner in _CLEANERS)


XFAILED = "XFailed"
"""Name of the exception pytest.xfail raises; a rank that does so stands down, as one that skips."""

_LONGEST_ADDRESS = 100

EventKind = Literal["hello", "phase", "progress", "failed", "skipped", "done", "remark", "turn"]


class RankEvent(Record, frozen=True, kw_only=True):
    """One line from a rank."""

    kind: EventKind
    rank: int
    at: float
    """CLOCK_MONOTONIC seconds: the rank's, and in the controller the controller's."""
    text: str = ""
    """The phase, what to show as progress, or what a rank that passed could not end."""


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
