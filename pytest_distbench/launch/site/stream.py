"""What a controller and a relay say to each other over one byte stream: orders down, words up, a JSON line each.

And the hosts for ranks that such a stream leads to.
"""

from __future__ import annotations

import math
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, get_args

import msgspec

from pytest_distbench.launch.site import Aftermath
from pytest_distbench.records.launch import MOMENTS, HostReport, RankReport
from pytest_distbench.records.launch_files import LaunchFiles
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.record import Record, replace
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


_READ_BYTES = 2**18
_LEAVE_S = 10.0
"""How long a relay may take to end when its stream has closed: it ends what is left of its ranks."""
_LOST_LEAVE_S = 1.0
"""The same where nobody reaches it any more."""


class Keeper(Protocol):
    """What a relay lives by.

    Attributes:
        pid: of a process of this host, which may keep several relays.
    """

    pid: int

    def poll(self) -> int | None:
        """The exit code of what leads there; None: it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the relay has ended. Raises ``subprocess.TimeoutExpired``."""

    def kill(self) -> None:
        """End it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host for ranks.

    Attributes:
        name: for people; each host has another.
        line: to the relay over there, which :func:`.relay.serve` reads: most often a connection that it has made.
        keeper: what the relay lives by, in a session of its own, which Ctrl-C does not reach.
    """

    name: str
    line: socket.socket
    keeper: Keeper
    ranks: Sequence[int]


class Hop:
    """The stream to a host's relay, and what is known of that.

    The offset is added to a moment of that host to make it one of ours; an error of None: nobody has measured it.
    It is silent since its last word, or since a ping that came after that.
    Answers are owed that are still to come: a Ctrl-C may have left one behind.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.line = host.line
        self.lines = Lines()
        self.offset_s = 0.0
        self.error_s: float | None = None
        self.pings = 0
        self.pinged_at = 0.0
        self.ponged_at = 0.0
        self.silent_since = 0.0
        self.pong = Pong(number=0, at=0.0)
        self.answer = Done()
        self.owed = 0
        self.ended: Ended | None = None
        self.is_lost = False
        self.trouble = ""

    @property
    def report(self) -> HostReport | None:
        """What the ranks there have left behind, with moments of this process's clock; None: it has not told."""
        return None if self.answer.report is None else _in_our_time(self.answer.report, self.offset_s)

    @property
    def has_answered(self) -> bool:
        return self.pong.number == self.pings

    def ping(self) -> None:
        """Ask for the time there, and whether anybody is there."""
        self.pinged_at = time.monotonic()
        if self.has_answered:
            self.silent_since = self.pinged_at
        self.pings += 1
        self.send(Ping(number=self.pings))

    def take_time(self, pong: Pong) -> None:
        self.pong, self.ponged_at = pong, time.monotonic()

    def read_clock(self) -> tuple[float, float] | None:
        """How wrong the last answer may be as a time of that host, and what makes a moment of it one of ours.

        None where there was none. It may be wrong by half of the way there and back.
        """
        half = (self.ponged_at - self.pinged_at) / 2
        return (half, self.pinged_at + half - self.pong.at) if self.has_answered else None

    def set_clock(self, readings: Sequence[tuple[float, float]]) -> None:
        """Take the best of some readings; the first time it counts, and later ones tell in how far it still does."""
        error_s, offset_s = min(readings, default=(math.inf, self.offset_s))
        if self.error_s is None:
            self.offset_s = offset_s
        self.error_s = error_s + abs(offset_s - self.offset_s)

    def send(self, order: Order) -> None:
        """Write an order into the stream. Raises :class:`OSError` where nobody reads it any more."""
        self.line.sendall(msgspec.json.encode(order) + b"\n")

    def read(self) -> bytes:
        """What has arrived; nothing where there will be no more, however that came about."""
        try:
            return self.line.recv(_READ_BYTES)
        except OSError:
            return b""

    def shut(self) -> None:
        """Close the stream, which ends what is left there."""
        self.line.close()

    def see_off(self) -> None:
        """See that what led to the stream ends, which it does by itself once all that it led to are shut."""
        keeper = self.host.keeper
        try:
            keeper.wait(timeout=_LOST_LEAVE_S if self.is_lost else _LEAVE_S)
        except subprocess.TimeoutExpired:
            keeper.kill()
            keeper.wait()


def _in_our_time(host: HostReport, offset_s: float) -> HostReport:
    """Reports whose moments are of this process's clock."""
    entered = {key: replace(each, firsts=[at + offset_s for at in each.firsts]) for key, each in host.entered.items()}
    return replace(host, ranks=[_moved(report, offset_s) for report in host.ranks], entered=entered)


def _moved(report: RankReport, offset_s: float) -> RankReport:
    phases = {name: at + offset_s if name in MOMENTS else at for name, at in report.phases.items()}
    error = replace(report.error, raised_at=report.error.raised_at + offset_s) if report.error is not None else None
    return replace(report, phases=phases, error=error)
