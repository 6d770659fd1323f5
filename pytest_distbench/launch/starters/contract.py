"""What a launcher is: it opens the site of a launch, on hosts that are alike.

What the hosts of a launcher are: measured is on all of them together, so that they have to be alike.

What a launcher is: it opens the site of a launch. Watching, ending and judging ranks is the supervisor's.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pytest_distbench.errors import ConfigurationError, LauncherError, show
from pytest_distbench.launch.site.contract import GPU, SEES, HostDescription, Site
from pytest_distbench.launch.starters.calls import Callers
from pytest_distbench.records.environment import Environment
from pytest_distbench.records.plan import LaunchPlan
from pytest_distbench.records.record import replace
from pytest_distbench.records.wire import SESSION_VARIABLE as SESSION_VARIABLE

NO_REVERSE_DNS = {"RES_OPTIONS": "attempts:0"}
"""For the processes that keep a store: torch asks for the name of every client, and where /etc/hosts does not know
127.0.0.1 and DNS does not answer, glibc waits 10 s each time while all clients wait too (seen: 10 s for two ranks)."""


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
        gpu: the ranks are to have GPUs.
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


def describe_hosts(whose: str, start: Callable[..., Callers], wanted: HostsWanted, *, gpu_advice: str) -> HostsFound:
    """What hosts are, told by each of them before the first launch.

    Args:
        whose: they are, for errors.
        start: starts a process on each; takes the arguments of :class:`~.calls.Callers` that are the same for all.
        wanted: for whom.
        gpu_advice: for who has found no GPU there.

    Raises:
        ConfigurationError: they are of several classes, run other software, have no GPU, or do not tell.
    """
    with tempfile.TemporaryDirectory(prefix="distbench-hosts-") as folder:
        module, words = "pytest_distbench.launch.site.contract", [f"{SEES}{folder}", *[GPU] * wanted.gpu]
        try:
            callers = start(module, *words, log=Path(folder, "log"), session=uuid.uuid4().hex)
            try:
                calls = callers.take(HostDescription, until_the_end=True)
            finally:
                callers.kill()
        except LauncherError as error:
            raise ConfigurationError(f"{whose} do not all say what they are: {error}") from None
    for call in calls:
        call.line.close()
    hosts = [call.said for call in calls]
    first = hosts[0].environment
    _refuse_differences(hosts, lambda found: found.software, f"{whose} run other software")
    if wanted.platform is None:
        _refuse_differences(
            hosts, lambda found: found.platform, f"{whose} are of several classes of hardware: take some of one class, "
            "or name the class of all of them, --distbench-platform NAME",
        )  # fmt: skip
    if wanted.gpu and first.gpu_host is None:
        raise ConfigurationError(f"--gpu: no GPU is visible on {hosts[0].host}: {gpu_advice}")
    environment = first if wanted.platform is None else replace(first, platform=wanted.platform)
    return HostsFound(environment=environment, share_temporary=all(host.sees for host in hosts))


def _refuse_differences(hosts: Sequence[HostDescription], of: Callable[[Environment], object], told: str) -> None:
    """Refuse hosts of which something differs that has to be one."""
    found: dict[str, list[str]] = {}
    for host in hosts:
        found.setdefault(show(of(host.environment)), []).append(host.host)
    if len(found) > 1:
        shown = "; ".join(f"{', '.join(names[:4])}: {what}" for what, names in found.items())
        raise ConfigurationError(f"{told}: {shown}")
