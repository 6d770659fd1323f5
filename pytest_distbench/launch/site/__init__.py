"""A site, where the ranks of a launch live: the only interface between the controller, pytest's process, and the ranks.

In this interface a rank is a number and a moment is a time of the controller's host. Process ids and time stamps of
other hosts never cross it: they mean nothing elsewhere.
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
        codes: rank -> exit code, or minus the signal's number; ranks with an unknown code are absent.
        stamps: name of a stage of the start -> its moment, for the breakdown of a launch's seconds.
        trouble: complaint of the process that started the ranks, or "".
        died: the process that started the ranks died before them, so that the ranks are not to blame.
        stuck: rank -> message about a rank that still exists after the site was cleared.
        oom_kills: rank -> number of processes on its host that the kernel killed meanwhile for lack of memory.
        remarks: further remarks on the launch.
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
    """How precisely moments of ranks on several hosts can be compared.

    Attributes:
        hosts: rank -> host that took its moments; empty if the controller's host took all.
        errors_s: host -> largest error of its moments after conversion to the controller's time, in seconds.
    """

    hosts: Mapping[int, str] = field(default_factory=dict)
    errors_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_one(self) -> bool:
        """Whether all moments were taken by one host."""
        return len(set(self.hosts.values())) < 2

    @property
    def max_error_s(self) -> float:
        """Seconds by which moments of any two ranks must differ to be ordered."""
        return 0.0 if self.is_one else sum(sorted(self.errors_s.values())[-2:])

    def error_s(self, one: int, other: int) -> float:
        """Seconds by which moments of these two ranks must differ to be ordered."""
        first, second = self.hosts.get(one, ""), self.hosts.get(other, "")
        return 0.0 if first == second else self.errors_s.get(first, 0.0) + self.errors_s.get(second, 0.0)


class Site(Protocol):
    """The place of the ranks of one launch.

    Attributes:
        heard: what the ranks have said so far.
        clocks: how precisely moments of its hosts can be compared.
        ended: how all ranks ended, or None while some run.
    """

    heard: Heard
    clocks: Clocks
    ended: Exit | None

    def fileno(self) -> int:
        """A descriptor that is readable when :meth:`listen` has something to receive."""

    def start(self) -> None:
        """Start the ranks. They find the address of the site in their plan (``LaunchPlan.address``).

        Raises:
            LauncherError: they could not be started.
        """

    def listen(self, timeout_s: float) -> list[Event]:
        """Receive what has arrived, or arrives within the time-out; returns new events of ranks."""

    def ask(self, ranks: Iterable[int], request: bytes) -> None:
        """Send one byte (``records/wire.py``) to those of the ranks that are still connected."""

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to a rank, which may have ended already."""

    def running(self) -> frozenset[int]:
        """The ranks that exist and are not ending already."""

    def look(self) -> None:
        """Set :attr:`ended` if a process that starts the ranks and waits for them is stopped (SIGSTOP) for too long."""

    def collect(self, *, undecided: Iterable[int], held: Iterable[int]) -> None:
        """Make ranks write their last collectives, and undecided ones also their stacks, into the launch's files."""

    def end(self, ranks: Iterable[int]) -> Exit:
        """End ranks by force, and with them the launch."""

    def clear(self) -> Exit:
        """End every process left of the launch, also detached ones; returns :attr:`ended` with what that has shown."""

    def fetch_output(self) -> None:
        """Copy what the ranks have printed so far into their logs among the launch's files."""

    def reports(self) -> list[HostReport]:
        """Reports of the ranks, one per host; to be called after :meth:`clear`."""

    def close(self) -> None:
        """Release all resources; a rank that is still connected ends."""


class Heard:
    """All that the ranks of a launch have said, and when their connections closed, in the controller's time.

    Lost ranks died: their connection closed before they said how they ended. A rank that failed or skipped holds: it
    waits to be ended. From ``ended_at`` on ranks are ended by force, and a signal may wake a hanging rank, so that
    later phases are not where it hung.
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
        """The message with which a rank failed, or "" if it left a report."""
        return next((str(e.text) for e in self.events if e.slot == rank and e.what == "failed" and e.text), "")

    def remarks(self) -> dict[int, str]:
        """Rank -> remarks on a rank that passed: what it could not end, what its threads raised."""
        found: dict[int, list[str]] = {}
        for event in self.events:
            if event.what == "remark" and event.text not in found.setdefault(event.slot, []):
                found[event.slot].append(event.text)
        return {rank: "; ".join(texts) for rank, texts in found.items()}

    def last_phase(self, rank: int) -> str:
        return self._last_phase.get(rank, "start")
