"""What a launcher is. Starting ranks is its only job; watching, ending and judging them is the supervisor's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import psutil

from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.wire import SESSION_VARIABLE as SESSION_VARIABLE

NO_REVERSE_DNS = {"RES_OPTIONS": "attempts:0"}
"""For the processes that keep a store: torch asks for the name of every client, and where /etc/hosts does not know
127.0.0.1 and DNS does not answer, glibc waits 10 s each time while all clients wait too (seen: 10 s for two ranks)."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How the ranks ended, as their parent saw it.

    Attributes:
        codes: rank -> exit code, or minus the signal's number; ranks the launcher knows nothing about are absent.
        stamps: CLOCK_MONOTONIC seconds of moments inside the launcher, for the cost breakdown.
        trouble: what the launcher itself complains about, if anything.
        died: the launcher did not live to see the end: the ranks are not to blame.
    """

    codes: dict[int, int] = field(default_factory=dict)
    stamps: dict[str, float] = field(default_factory=dict)
    trouble: str = ""
    died: bool = False


class RunningLaunch(Protocol):
    """A launch in flight."""

    def fileno(self) -> int:
        """A descriptor that turns readable when :meth:`poll` has something to do."""

    def poll(self) -> Exit | None:
        """Take in what has arrived; the exit when all ranks have ended, else None. Never blocks."""

    def pids(self) -> dict[int, int]:
        """Rank -> process id, as far as known."""

    def abandon(self) -> None:
        """End whatever of the launcher still belongs to this launch, by force, within a few seconds."""


class Launcher(Protocol):
    """Starts process groups of the torchrun kind."""

    name: str
    session: str
    """The value of :data:`SESSION_VARIABLE` in all that it starts."""

    def prepare(self, variables: dict[str, str]) -> None:
        """Begin whatever makes the first launch quick. Returns at once."""

    def start(self, plan: LaunchPlan) -> RunningLaunch:
        """Start the ranks of a plan that is stored in its directory.

        Raises:
            LauncherError: the ranks could not be started.
        """

    def leftovers(self) -> list[psutil.Process]:
        """Processes of launches that have ended, found by what they were started with, however they got away."""

    def close(self) -> None:
        """End everything this launcher keeps running."""
