"""A site, where the ranks of a launch live: the one contract between the controller, pytest's process, and the ranks.

A rank is a number here, and a moment is one of the controller's clock. No process id and no stamp of another clock
crosses this contract: they mean nothing elsewhere.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pytest_distbench.records.record import Record

if TYPE_CHECKING:  # a guardian, which starts for each command, has no use for these
    from pytest_distbench.records.launch import HostReport
    from pytest_distbench.records.wire import Event

PULSE_S = 5.0  # longest pause in listening: a site may have gone without a word
LOOK_S = 1.0  # between looks whether those stand still who have to notice that ranks start and end


class Exit(Record, frozen=True, kw_only=True, omit_defaults=True):
    """How the ranks ended, as their site saw it.

    Attributes:
        codes: rank -> exit code, or minus the signal's number; ranks that nobody knows about are absent.
        stamps: moments inside the launcher, for the cost breakdown.
        trouble: what whoever started the ranks complains about, if anything.
        died: it did not live to see the end: the ranks are not to blame.
        stuck: ranks that are still there when the site is clear, with what is to be said of each.
        oom_kills: rank -> processes that the kernel of its host has ended meanwhile for lack of memory; none: absent.
        remarks: what is to be said of the launch besides.
    """

    codes: dict[int, int] = {}
    stamps: dict[str, float] = {}
    trouble: str = ""
    died: bool = False
    stuck: dict[int, str] = {}
    oom_kills: dict[int, int] = {}
    remarks: list[str] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """How well moments of ranks can be compared.

    Attributes:
        hosts: rank -> the host whose clock its moments were taken by; empty: all were taken by the controller's.
        errors_s: host -> how far a moment of it, told in the controller's time, may be from the true one.
    """

    hosts: Mapping[int, str] = field(default_factory=dict)
    errors_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_one(self) -> bool:
        """Whether one clock has all moments."""
        return len(set(self.hosts.values())) < 2

    @property
    def most_doubt_s(self) -> float:
        """Seconds by which moments of any two ranks must differ to be ordered."""
        return 0.0 if self.is_one else sum(sorted(self.errors_s.values())[-2:])

    def doubt_s(self, one: int, other: int) -> float:
        """Seconds by which moments of these two ranks must differ to be ordered."""
        first, second = self.hosts.get(one, ""), self.hosts.get(other, "")
        return 0.0 if first == second else self.errors_s.get(first, 0.0) + self.errors_s.get(second, 0.0)


class Site(Protocol):
    """Where the ranks of one launch live.

    Attributes:
        heard: what they have said so far.
        clocks: how well moments of theirs can be compared.
        ended: how all of them ended; None: they have not.
    """

    heard: Heard
    clocks: Clocks
    ended: Exit | None

    def fileno(self) -> int:
        """A descriptor that is readable when :meth:`listen` has something to take in."""

    def start(self) -> None:
        """Start the ranks. They find their line to the site in the plan that they are given (``LaunchPlan.address``).

        Raises:
            LauncherError: they could not be started.
        """

    def listen(self, timeout_s: float) -> list[Event]:
        """Take in what has arrived, or arrives within the time-out. Returns what ranks have newly said."""

    def ask(self, ranks: Iterable[int], request: bytes) -> None:
        """Send one byte (``records/wire.py``) to those of the ranks that are still connected."""

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to a rank, which may be gone already."""

    def running(self) -> frozenset[int]:
        """The ranks that are there, and not on their way out already."""

    def look(self) -> None:
        """Look whether those stand still who have to notice that ranks start and end; then :attr:`ended` says so."""

    def collect(self, *, undecided: Iterable[int], held: Iterable[int]) -> None:
        """Make ranks write their stacks and last collectives into the launch's files; of ``held`` ones the latter."""

    def end(self, ranks: Iterable[int]) -> Exit:
        """End ranks by force, and with them the launch."""

    def clear(self) -> Exit:
        """End all that is left of the launch, however it got away; :attr:`ended`, with what that has shown."""

    def fetch_output(self) -> None:
        """Bring what the ranks have printed so far into their logs among the launch's files."""

    def reports(self) -> list[HostReport]:
        """What ranks have left, of each host; to be asked for when the site is clear."""

    def close(self) -> None:
        """Let go of everything: a rank that is still connected ends."""


class Heard:
    """All that the ranks of a launch have said, and when their lines ended, in the controller's time.

    Lost ranks have died: their lines ended before they said how they ended. One that has not passed holds: it waits to
    be ended. From ``ended_at`` on ranks are ended by force, and a signal may wake what hung: later phases are not where
    it was.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.closed_at: dict[int, float] = {}
        self.ranks_up: set[int] = set()
        self.ranks_in_body: set[int] = set()
        self.ranks_done: set[int] = set()
        self.ranks_passed: set[int] = set()
        self.ranks_lost: set[int] = set()
        self.is_holding = False
        self.ended_at = math.inf
        self._last_phase: dict[int, str] = {}

    def take(self, events: Iterable[Event]) -> None:
        for event in events:
            self.events.append(event)
            match event.what:
                case "hello":
                    self.ranks_up.add(event.slot)
                case "phase" if event.t <= self.ended_at:
                    self._last_phase[event.slot] = event.text
                    if event.text == "body":
                        self.ranks_in_body.add(event.slot)
                case "done":
                    self._end(event.slot)
                    self.ranks_passed.add(event.slot)
                case "failed" | "skipped":
                    self._end(event.slot)
                    self.is_holding = True

    def _end(self, rank: int) -> None:
        self.ranks_done.add(rank)
        self.ranks_lost.discard(rank)

    def close(self, rank: int, at: float) -> None:
        self.closed_at[rank] = at
        if rank not in self.ranks_done:
            self.ranks_lost.add(rank)

    def said(self, rank: int) -> str:
        """What a failed rank said on the line, or "" if it left a report."""
        return next((str(e.text) for e in self.events if e.slot == rank and e.what == "failed" and e.text), "")

    def remarks(self) -> dict[int, str]:
        """Rank -> remarks on one that passed: what it could not end, what its threads raised."""
        found: dict[int, list[str]] = {}
        for event in self.events:
            if event.what == "remark" and event.text not in found.setdefault(event.slot, []):
                found[event.slot].append(event.text)
        return {rank: "; ".join(texts) for rank, texts in found.items()}

    def last_phase(self, rank: int) -> str:
        return self._last_phase.get(rank, "start")
