"""What a host is, told by itself.

``python -m pytest_distbench.launch.site.describe PORT ADDRESS... --sees=FOLDER [--gpu]``

It runs on each host of a launcher before the first launch, and calls the controller as a relay does (``dial.py``).
"""

from __future__ import annotations

import os
import platform
import sys

from pytest_distbench.launch.site.dial import SECRET_VARIABLE, Caller, connect, host_name, say
from pytest_distbench.machine import gpus, hardware
from pytest_distbench.records.environment import Environment

GPU, SEES = "--gpu", "--sees="


class HostDescription(Caller, frozen=True, kw_only=True):
    """A host that says what is measured on it is measured on."""

    environment: Environment
    sees: bool
    """Whether it sees a folder of the controller's host."""


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
