"""What the hosts of a launcher are: measured is on all of them together, so that they have to be alike.

``python -m pytest_distbench.hosts.descriptions PORT ADDRESS... --sees=FOLDER [--gpu]`` runs on each of them before
the first launch, calls the controller as a relay does (``hosts/relay.py``), and tells what its host is.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from pytest_distbench.errors import ConfigurationError, LauncherError, show
from pytest_distbench.hosts.calls import Callers
from pytest_distbench.hosts.relay import SECRET_VARIABLE, Caller, connect, host_name, say
from pytest_distbench.launch.starters import HostsFound, HostsWanted
from pytest_distbench.machine import gpus, hardware
from pytest_distbench.records.environment import Environment
from pytest_distbench.records.record import replace

GPU, SEES = "--gpu", "--sees="


class HostDescription(Caller, frozen=True, kw_only=True):
    """A host that says what is measured on it is measured on."""

    environment: Environment
    sees: bool
    """Whether it sees a folder of the controller's host."""


def describe_hosts(whose: str, start: Callable[..., Callers], wanted: HostsWanted, *, gpu_advice: str) -> HostsFound:
    """What hosts are, told by each of them before the first launch.

    Args:
        start: starts a process on each; takes the arguments of :class:`~.calls.Callers` that are the same for all.

    Raises:
        ConfigurationError: they are of several classes, run other software, have no GPU, or do not tell.
    """
    with tempfile.TemporaryDirectory(prefix="distbench-hosts-") as folder:
        module, words = "pytest_distbench.hosts.descriptions", [f"{SEES}{folder}", *[GPU] * wanted.gpu]
        try:
            callers = start(module, *words, log=Path(folder, "log"), session=uuid.uuid4().hex)
            try:
                calls = callers.take(HostDescription, until_the_end=True)
            finally:
                callers.kill()
        except LauncherError as error:
            raise ConfigurationError(f"{whose} do not all report their hardware: {error}") from None
    for call in calls:
        call.line.close()
    hosts = [call.said for call in calls]
    first = hosts[0].environment
    _refuse_differences(hosts, lambda found: found.software, f"{whose} have different software")
    if wanted.platform is None:
        _refuse_differences(
            hosts,
            lambda found: found.platform,
            f"{whose} have different hardware: use hosts of one platform, or name all with --distbench-platform NAME",
        )
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


def main() -> None:
    """Describe this host."""
    port, *words = sys.argv[1:]
    folder = next(word.removeprefix(SEES) for word in words if word.startswith(SEES))
    found = gpus.read_gpus(os.environ) if GPU in words else gpus.Gpus()
    software = {"python": platform.python_version(), "torch": hardware.installed_version("torch")}
    environment = hardware.describe(platform_name=None, gpus=found, software=software, variables=os.environ)
    told = HostDescription(
        secret=os.environ[SECRET_VARIABLE], host=host_name(), environment=environment, sees=os.path.isdir(folder)
    )
    with connect([word for word in words if not word.startswith("--")], int(port)) as line:
        say(line, told)


if __name__ == "__main__":
    main()
