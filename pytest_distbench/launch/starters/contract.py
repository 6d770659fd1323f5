"""What a launcher is: it opens the site of a launch. Watching, ending and judging ranks is the supervisor's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pytest_distbench.launch.site.contract import Site
from pytest_distbench.records.environment import Environment
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.wire import SESSION_VARIABLE as SESSION_VARIABLE

NO_REVERSE_DNS = {"RES_OPTIONS": "attempts:0"}
"""For the processes that keep a store: torch asks for the name of every client, and where /etc/hosts does not know
127.0.0.1 and DNS does not answer, glibc waits 10 s each time while all clients wait too (seen: 10 s for two ranks)."""

LOOPBACK_ADDRESS = "127.0.0.1"
MAKE_STORE, DROP_STORE = b"m", b"d"
"""To the process that keeps the store of a launch of this host: make one, and let go of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What starts processes on other hosts for us.

    Attributes:
        template: a command of the user's, with placeholders (``cmd.py``).
        ranks_per_node: that a host is filled with.
    """

    template: str
    ranks_per_node: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsWanted:
    """For whom hosts say what they are.

    Attributes:
        platform: the class of hardware that the user has named; None: that of the hosts, which must be one.
        ranks: of the largest launch.
        engine: that starts processes there, None: nobody has named one.
    """

    gpu: bool
    platform: str | None
    ranks: int
    engine: Engine | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsFound:
    """What the hosts of a launcher have said.

    Attributes:
        environment: that all of them are.
        share_temporary: each sees the folder in which pytest makes temporary files, another revision's for one.
    """

    environment: Environment
    share_temporary: bool


class Launcher(Protocol):
    """Knows where the ranks of a launch are to live, and starts process groups of the torchrun kind there."""

    name: str
    session: str
    """The value of :data:`SESSION_VARIABLE` in all that it starts."""

    def prepare(self, variables: dict[str, str]) -> None:
        """Begin whatever makes the first launch quick. Returns at once."""

    def open(self, plan: LaunchPlan) -> Site:
        """The site of a launch, where nothing runs yet: on this host a :class:`~.site.local.LocalSite`."""

    def close(self) -> None:
        """End everything this launcher keeps running."""
