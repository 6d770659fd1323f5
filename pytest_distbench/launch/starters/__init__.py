"""The launchers: what each can do, how it is made, and the protocol. Other code asks here, and never compares names.

A conftest or a plugin adds a launcher by one row: ``LAUNCHERS["mine"] = LauncherKind(...)``. Every pytest run imports
this module, so it imports no launcher: a row's ``make`` does. Launchers of other hosts are rows of ``hosts``.
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
"""Variables of ranks on one host: private sockets, and a reverse look-up of 127.0.0.1 takes 1 s instead of 10 s."""

NO_REVERSE_DNS = {"RES_OPTIONS": "attempts:0"}
"""Variables of processes that keep a store: torch looks up every client's name, and if neither /etc/hosts nor DNS knows
127.0.0.1, glibc waits 10 s each time while all clients wait too."""

LOOPBACK_ADDRESS = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherSetup:
    """Arguments of every launcher.

    Attributes:
        directory: private directory of the pytest run, for logs and sockets.
        session: cookie in the environment of all processes that the launcher starts.
        preload: modules to import once for all ranks, where that is possible.
        interpreter: Python that runs the ranks, or None for this one.
        python_path: import path of that Python, which has to include this package, or None for this process's.
        engine: the user's command that starts processes on other hosts, or "".
        on_progress: called repeatedly with what the first launch waits for.
        on_loaded: called with the seconds until ranks could be forked.
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
    """Starts process groups as torchrun does, on the hosts that it knows.

    It opens a launch's site, by which ranks are started, signalled and read; the supervisor watches, ends and judges
    them.
    """

    name: str
    session: str  # the value of :data:`~pytest_distbench.records.wire.SESSION_VARIABLE` in all that it starts

    def prepare(self, variables: dict[str, str]) -> None:
        """Begin whatever makes the first launch quick, if anything does. Returns at once."""
        del variables

    def open(self, plan: LaunchPlan) -> Site:
        """The site of a launch, before anything runs there; on this host a :class:`~.site.local.LocalSite`."""

    def close(self) -> None:
        """End everything that this launcher keeps running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosting:
    """How the processes of a launch use this host.

    Attributes:
        hosts: ``one``: they run on this host, use its GPUs, and are measured one launch at a time. ``many``: on other
            hosts, whose relays start them (``hosts/relay.py``); what else runs there, and which GPUs there are, is
            unknown here. ``none``: nowhere, they are simulated.
        is_spaced: launches are spaced out in time on a restless machine, as consecutive ones see the same interference.
        sets_threads: whether ranks are forked with torch loaded, and must be given their number of threads.
    """

    hosts: Literal["none", "one", "many"] = "one"
    is_spaced: bool = True
    sets_threads: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherKind(Hosting):
    """What the rest of the code knows of a launcher; a row of :data:`LAUNCHERS`.

    Attributes:
        make: makes the launcher; imports what it needs.
        starts: how ranks are started, such as ``forked with torch loaded``, or "" for ``started by NAME``.
        holds_two: whether two groups may run at once, which an interleaved A/B needs.
        may_confirm: whether distbench may run two groups unasked, to confirm a suspicious case; False if other software
            decides whether two commands run on the same hosts.
        takes_python: whether one of two groups may run under another Python.
        variables: environment variables of all launches of the run, unless the user has set them.
        describe: takes the largest number of ranks, the engine, whether there are GPUs, and the platform that the user
            named, or ""; returns the environment of the hosts, which must be alike, and whether each sees pytest's
            folder of temporary files. None if ranks run on this host.
        layout: takes a number of ranks, the engine, and whether there are GPUs; returns the number of ranks on each
            host. None if all run on one.
        engine: checks the command given to ``--distbench-launcher`` in place of a name; None if a name is given.
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
    """A function that calls the one at ``module:name``, whose module is imported at the first call."""

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
"""Launchers by the name that baselines have."""


def how_started(launcher: str) -> str:
    """How a launcher starts its ranks, as shown to users."""
    row = LAUNCHERS.get(launcher)
    return (row.starts if row is not None else "") or f"started by {launcher}"


def shown(launchers: Iterable[str]) -> str:
    """What to give to ``--distbench-launcher`` for each of these launchers, as one text for a message."""
    return ", ".join("a command with {nodes} and {command}" if LAUNCHERS[name].engine else name for name in launchers)
