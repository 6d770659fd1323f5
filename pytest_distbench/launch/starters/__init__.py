"""The launchers: what each can do, how it is made, and what one is. The rest of the code asks here, never for a name.

A conftest or a plugin adds a launcher by one row: ``LAUNCHERS["mine"] = LauncherKind(...)``. This module is read in
every pytest run, so it imports nothing: a row's ``make`` does. Launchers of other hosts are rows of ``hosts``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pytest_distbench.extensions import Table

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_distbench.launch.site import Site
    from pytest_distbench.records.environment import Environment
    from pytest_distbench.records.plan import LaunchPlan


LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "RES_OPTIONS": "timeout:1 attempts:1"}
"""For ranks of one host: private sockets, and a reverse look-up of 127.0.0.1 costs one second, not ten."""

NO_REVERSE_DNS = {"RES_OPTIONS": "attempts:0"}
"""For processes with a store: torch asks for every client's name, and if neither /etc/hosts nor DNS knows 127.0.0.1,
glibc waits 10 s each time while all clients wait too.
"""

LOOPBACK_ADDRESS = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherSetup:
    """What a launcher is made of.

    Attributes:
        directory: private directory of the pytest run, for logs and sockets.
        session: cookie that marks all that the launcher starts, in its environment.
        preload: modules to import once for all ranks, where that is possible.
        interpreter: the Python that runs the ranks; None: this one.
        python_path: where that one finds this package, and whatever else it should; None: as here.
        engine: command of the user's that starts processes on other hosts; empty: nobody has named one.
        on_progress: what the first launch waits for, again and again.
        on_loaded: how many seconds it has waited until ranks could be forked.
    """

    directory: Path
    session: str
    preload: Sequence[str] = ()
    interpreter: Path | None = None
    python_path: Sequence[str] | None = None
    engine: str = ""
    on_progress: Callable[[str], None] = lambda text: None
    on_loaded: Callable[[float], None] = lambda seconds: None


class Launcher(Protocol):
    """Knows where the ranks of a launch are to live, and starts process groups of the torchrun kind there.

    It opens the site of a launch; watching, ending and judging ranks is the supervisor's.
    """

    name: str
    session: str  # the value of :data:`~pytest_distbench.records.wire.SESSION_VARIABLE` in all that it starts

    def prepare(self, variables: dict[str, str]) -> None:
        """Begin whatever makes the first launch quick, if anything does. Returns at once."""
        del variables

    def open(self, plan: LaunchPlan) -> Site:
        """The site of a launch, where nothing runs yet: on this host a :class:`~.site.local.LocalSite`."""

    def close(self) -> None:
        """End everything this launcher keeps running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosting:
    """What this host has to do with the processes of a launch.

    Attributes:
        hosts: where they run. ``one``: on this host, so that its GPUs are theirs, and one measurement at a time may run
            here. ``many``: on others, whose relays start them (``hosts/relay.py``); who else measures there, and
            which GPUs there are, is not known here. ``none``: nowhere, they are made up.
        is_spaced: launches in one breath see the same seconds of a machine, and are held apart where it is restless.
        sets_threads: they come from one that has torch loaded, and have to be told their number of threads.
    """

    hosts: Literal["none", "one", "many"] = "one"
    is_spaced: bool = True
    sets_threads: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherKind(Hosting):
    """One launcher, as the rest of the code sees it.

    Attributes:
        make: makes it; imports what it needs.
        starts: what its ranks are, behind their number: ``started by torchrun``; empty: its name says it.
        holds_two: two groups may be open at once, which an interleaved A/B needs.
        may_confirm: two may be open unasked, to confirm a suspicious case; not where it is other software's to say
            whether two commands run on the same hosts.
        takes_python: one of them may run under another Python.
        variables: set in the environment of all launches of the run unless the user has.
        describe: what its hosts are, before the first launch, for the largest number of ranks, by the engine, with
            GPUs or without; and whether each sees the folder in which pytest makes temporary files. A platform is the
            class of hardware that the user has named; empty: that of the hosts, which must be one. None: they are as
            this one.
        layout: how many of so many ranks live on each of its hosts, by the engine, with GPUs or without; None: all on
            one.
        engine: checks the command that ``--distbench-launcher`` gives in place of this launcher's name; None: it is
            given by its name.
    """

    help: str
    make: Callable[[LauncherSetup], Launcher]
    starts: str = ""
    holds_two: bool = False
    may_confirm: bool = True
    takes_python: bool = True
    variables: Mapping[str, str] = field(default_factory=dict)
    describe: Callable[..., tuple[Environment, bool]] | None = None
    layout: Callable[..., Sequence[int]] | None = None
    engine: Callable[[str], None] | None = None


def by_name(place: str) -> Callable[..., Any]:
    """A call of ``module:name``, imported at its first call."""

    def call(*given: Any, **named: Any) -> Any:
        module, _, name = place.partition(":")
        return getattr(importlib.import_module(module), name)(*given, **named)

    return call


_HERE = "pytest_distbench.launch.starters"

LAUNCHERS: Table[str, LauncherKind] = Table(
    "launchers",
    {
        "warm": LauncherKind(
            help="start ranks from a process that has torch loaded",
            make=by_name(f"{_HERE}.warm:WarmLauncher"),
            starts="forked with torch loaded",
            holds_two=True,
            sets_threads=True,
            variables=LOOPBACK,
        ),
        "torchrun": LauncherKind(
            help="the command-line tool", make=by_name(f"{_HERE}.torchrun:TorchrunLauncher"), variables=LOOPBACK
        ),
    },
)
"""By the name that baselines are stored under."""


def how_started(launcher: str) -> str:
    """How the ranks of a launcher are started, for people."""
    row = LAUNCHERS.get(launcher)
    return (row.starts if row is not None else "") or f"started by {launcher}"


def shown(launchers: Iterable[str]) -> str:
    """Launchers as ``--distbench-launcher`` takes them."""
    return ", ".join("a command with {nodes} and {command}" if LAUNCHERS[name].engine else name for name in launchers)
