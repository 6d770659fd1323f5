"""What a controller and a relay say to each other over one byte stream: orders down, words up, a JSON line each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

from pytest_distbench.launch.site import Aftermath
from pytest_distbench.records.launch import HostReport
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.record import Record
from pytest_distbench.records.wire import RankEvent


class Open(Record, frozen=True, kw_only=True, tag=True):
    """Make a place for the launch, and measure nothing yet. Answered."""

    plan: LaunchPlan
    """With its variables as they travel."""
    places: dict[int, dict[str, str]]
    """Rank that is to live there -> the variables by which torchrun would tell it its place."""
    began_ns: int
    """When the file of that name was made: a relay that finds the same one shares the launch's folder."""


class Ping(Record, frozen=True, kw_only=True, tag=True):
    """Tell the time. Answered by :class:`Pong`, with the same number."""

    number: int


class Start(Record, frozen=True, kw_only=True, tag=True):
    """Start the ranks. Answered."""


class Ask(Record, frozen=True, kw_only=True, tag=True):
    """Hand a request to ranks."""

    ranks: list[int]
    request: str


class Signal(Record, frozen=True, kw_only=True, tag=True):
    """Send a signal to a rank."""

    rank: int
    number: int


class Running(Record, frozen=True, kw_only=True, tag=True):
    """Say which ranks are there. Answered."""


class Collect(Record, frozen=True, kw_only=True, tag=True):
    """Make ranks write their stacks and last collectives. Answered when they have, or cannot."""

    undecided: list[int]
    held: list[int]


class End(Record, frozen=True, kw_only=True, tag=True):
    """End ranks by force, and with them the launch there. Answered when :class:`Ended` was said."""

    ranks: list[int]


class FetchOutput(Record, frozen=True, kw_only=True, tag=True):
    """Send what ranks have printed since. Answered when it was sent."""


class Clear(Record, frozen=True, kw_only=True, tag=True):
    """End what is left over, and send all that ranks have written. Answered with what they have reported."""


Order = Open | Ping | Start | Ask | Signal | Running | Collect | End | FetchOutput | Clear
"""From the controller to a relay. It carries them out one after the other."""


class Pong(Record, frozen=True, kw_only=True, tag=True):
    """The relay's time, CLOCK_MONOTONIC seconds of its host; as all moments that a relay tells."""

    number: int
    at: float


class Said(Record, frozen=True, kw_only=True, tag=True):
    """A rank said something."""

    event: RankEvent


class Closed(Record, frozen=True, kw_only=True, tag=True):
    """A rank's line has ended."""

    rank: int
    at: float


class Ended(Record, frozen=True, kw_only=True, tag=True):
    """All ranks there have ended."""

    codes: dict[int, int]
    trouble: str
    died: bool = False


FileKind = Literal["log", "stacks", "flight", "groups"]
"""What a rank writes that is shown as it is, and the method of :class:`LaunchFiles` that names the file."""

OUTPUT: tuple[FileKind, ...] = ("log",)
EVERYTHING: tuple[FileKind, ...] = get_args(FileKind)


class Wrote(Record, frozen=True, kw_only=True, tag=True):
    """A rank has written this to one of its files; at its beginning: what was there before is gone."""

    rank: int
    kind: FileKind
    offset: int
    data: bytes


class Done(Record, frozen=True, kw_only=True, tag=True):
    """The answer to an order."""

    ranks: list[int] = []
    aftermath: Aftermath | None = None
    report: HostReport | None = None
    trouble: str = ""
    """Why it could not be carried out; empty: it was."""


Word = Pong | Said | Closed | Ended | Wrote | Done
"""From a relay to the controller."""


def place_of(files: LaunchFiles, kind: FileKind, rank: int) -> Path:
    name: Callable[[int], Path] = getattr(files, kind)
    return name(rank)


class Lines:
    """The lines in a stream of bytes, whole ones only. A line of any length is put together once."""

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
